"""What a shell is told when it completes a command line."""

from __future__ import annotations

import os
import subprocess
import sys


def completed(words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "kalla.cli.main"],
        env=os.environ
        | {
            "_KALLA_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.split()


def test_commands_and_their_own_commands_are_completed() -> None:
    assert {"scaling", "secret", "sinks", "sources"} <= set(completed("kalla s"))
    assert set(completed("kalla scaling ")) == {"show", "list", "explain", "simulate"}

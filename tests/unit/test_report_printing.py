"""A report that cannot be printed is never taken for exceptions that were found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import typer
from kalla.cli.reconcile.report import printing

def command() -> None:
    with printing():
        {what}
    raise typer.Exit(0)

typer.run(command)
"""


@pytest.mark.parametrize(
    "what",
    [
        "typer.echo('x' * 1000000)",
        "print('x', end='')",
        "raise UnicodeEncodeError('a', 'b', 0, 1, 'c')",
    ],
    ids=["much", "buffered", "a sign"],
)
def test_it_is_exit_code_2(what: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRINTS.format(what=what)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("The report cannot be printed: ")
    assert "Traceback" not in done.stderr


def test_who_has_seen_enough_of_it_hears_no_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    what = PRINTS.format(what="typer.echo('x' * 1000000)").replace("Exit(0)", "Exit(1)")
    done = subprocess.run(
        [sys.executable, "-c", what], stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")

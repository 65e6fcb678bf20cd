"""A process that refreshes a dynamic table and stops itself at a step of the commit.

It reads one line for each refresh: the step, the payload and the number of the claim. It sends
itself SIGSTOP at that step; once it goes on, it writes a line with what came of the refresh.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pydantic import SecretStr

from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from kalla.tables.delta.commit import Committed, FencedTable, Stale
from kalla.tables.refresh import compute
from kalla.tables.refresh.compute import Computation
from kalla.tables.refresh.payload import RefreshPayload
from kalla.tables.refresh.run import refresh

STEPS = (
    "before the barrier",
    "after the barrier",
    "after computing",
    "between check and commit",
    "before verifying",
)

# Where each step is, as an owner and the name of its function.
_PLACES: dict[str, tuple[Any, str]] = {
    "before the barrier": (FencedTable, "raise_barrier"),
    "after the barrier": (Computation, "result"),
    "after computing": (compute, "rewritten"),
    "between check and commit": (FencedTable, "_put"),
    "before verifying": (FencedTable, "_verified"),
}


def main() -> None:
    remote, token = sys.argv[1:]
    spark = connect(SparkSettings(remote=remote, token=SecretStr(token)))
    for line in sys.stdin:
        asked = json.loads(line)
        owner, name = _PLACES[asked["step"]]
        original = getattr(owner, name)
        # The barrier, too, is put into the log.
        skipped = 1 if name == "_put" else 0
        setattr(owner, name, _stopping(original, skipped))
        try:
            payload = RefreshPayload.model_validate(asked["payload"])
            found = refresh(spark, payload, asked["claim"], f"{asked['claim']}.1")
            outcome = "adopted" if isinstance(found, Committed) else "committed"
        except Stale as stale:
            outcome = f"stale: {stale}"
        finally:
            setattr(owner, name, original)
        sys.stdout.write(outcome + "\n")
        sys.stdout.flush()
    spark.stop()


def _stopping(original: Callable[..., Any], skipped: int) -> Callable[..., Any]:
    calls = 0

    def stopped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == skipped + 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(*arguments)

    return stopped


if __name__ == "__main__":
    main()

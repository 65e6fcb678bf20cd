"""A process that has imported everything but Kalla, and forks for each mutant: seconds become one.

Reads a JSON line {"arguments", "environment", "output"}, answers with pytest's exit code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

# What the tests and Kalla import anyway; pytest's own plugins are left to pytest.
import hypothesis.stateful  # noqa: F401
import nats.js  # noqa: F401
import prometheus_client  # noqa: F401
import psutil  # noqa: F401
import psycopg.types.json  # noqa: F401
import psycopg_pool  # noqa: F401
import pydantic
import pytest
import structlog  # noqa: F401


class Warm(pydantic.BaseModel):
    """The first model is the slow one."""

    number: int = 0


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            _become_pytest(asked["arguments"], asked["environment"], Path(asked["output"]))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become_pytest(arguments: list[str], environment: dict[str, str], output: Path) -> None:
    code = 3  # pytest's own code for an internal error
    try:
        with output.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.environ.update(environment)
        sys.path.insert(0, environment["PYTHONPATH"])
        code = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

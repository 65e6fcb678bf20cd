"""The process of the embedded ClickHouse: listens in the folder it is given until it is ended."""

import os
import signal
import sys
from collections.abc import Callable

_SERVE = """\
SYSTEM START LISTEN HTTP;
SELECT sleepEachRow(1) FROM system.numbers FORMAT Null
SETTINGS function_sleep_max_microseconds_per_block = 0, max_block_size = 1, max_execution_time = 0
"""


def main(folder: str) -> None:
    os.chdir(folder)
    from chdb import _chdb

    # The library takes the signal for itself, and would wait for the query that never ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve: Callable[..., object] = _chdb.query  # type: ignore[attr-defined]
    serve(_SERVE, "TSV", path=os.path.join(folder, "store"))  # noqa: PTH118


if __name__ == "__main__":
    main(sys.argv[1])

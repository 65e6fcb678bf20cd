"""Spark's Python daemon with numba imported: the workers that it forks have it already.

To import it takes a process longer than to match a million rows. Spark runs this module in place
of `pyspark.daemon` where `spark.python.daemon.module` names it.
"""

from __future__ import annotations

import os


def main() -> None:
    # No thread may run before a fork: numpy's BLAS would start some, which no kernel uses.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numba  # noqa: F401
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()

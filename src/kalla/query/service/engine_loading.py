"""Loads the engine and its compiled kernels, which takes seconds, before a query needs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kalla import logs, query
from kalla.query.evaluate.sample_source import MemorySource

if TYPE_CHECKING:
    from kalla.query.engine import Answer

_EVERY_PART = 'sum(rate(a{b=~"c.+"}[5m])) or vector(1.5)'
_log = logs.get(__name__)


def load_engine(
    kernels: Path,
    more: Sequence[str] = (),
    use: Callable[[Answer], object] | None = None,
) -> None:
    """`more` names other modules with kernels; `use` is called with an answer, once."""
    began = time.monotonic()
    set_kernel_cache(kernels)
    from kalla.compiling import prepare
    from kalla.query.engine import Engine
    from kalla.query.store import segment_source

    segment_source.prepare()
    for module in more:
        import_module(module)
    prepare("kalla.query")
    answer = Engine(MemorySource({})).instant(_EVERY_PART, 0)
    if use is not None:
        use(answer)
    _log.info("the query engine is ready", seconds=round(time.monotonic() - began, 1))


def set_kernel_cache(folder: Path) -> None:
    """Compiled kernels are cached next to the code, or in Kalla's own folder where the code is
    read-only.
    """
    if not os.access(Path(query.__file__).parent, os.W_OK):
        os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))

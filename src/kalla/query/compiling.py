"""How kernels are compiled: on first use, once for all processes, without Python's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import numba
from numba import types

Kernel = Callable[..., Any]
_compiling = threading.Lock()
_kernels: list[Callable[[], Kernel]] = []


def compiled(signature: str) -> Callable[[Kernel], Kernel]:
    """A kernel of one signature; nothing is compiled, nor read from the cache, before its use.

    The signature is what comes back, a colon, and what goes in: `int`, `flag`, or an array by the
    letter of its type (i f b u) and its dimensions. Capital arrays are written to; the others may
    be read-only, as those of a mapped file are.
    """

    def wrap(function: Kernel) -> Kernel:
        ready: list[Kernel] = []

        def made() -> Kernel:
            if not ready:
                with _compiling:
                    if not ready:
                        ready.append(_built(signature, function))
            return ready[0]

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return made()(*arguments)

        _kernels.append(made)
        return call

    return wrap


_SCALARS = {"int": types.int64, "flag": types.boolean, "none": types.void}
_ITEMS = {"i": types.int64, "f": types.float64, "b": types.boolean, "u": types.uint8}


def _typed(word: str) -> Any:
    if word in _SCALARS:
        return _SCALARS[word]
    item = _ITEMS[word[0].lower()]
    return types.Array(item, int(word[1]), "C", readonly=word[0].islower())


def prepare() -> None:
    """Compiles what is not in the cache yet, and loads the rest: before a server takes queries."""
    for made in _kernels:
        made()


def _built(written: str, function: Kernel) -> Kernel:
    result, _, taken = written.partition(":")
    signature = _typed(result)(*(_typed(word) for word in taken.split()))
    made: Kernel
    try:
        made = numba.njit(signature, nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError as problem:
        if "cannot cache" not in str(problem):
            raise
        # No folder to keep it in: each process compiles for itself.
        made = numba.njit(signature, nogil=True, error_model="numpy")(function)
    return made


def helper(function: Kernel) -> Kernel:
    """A part of kernels, compiled into them."""
    made: Kernel = numba.njit(error_model="numpy")(function)
    return made

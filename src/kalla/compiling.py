"""How kernels are compiled: on first use, once for all processes, without Python's lock.

`python -m kalla.compiling [ROOM]` compiles them ahead of time. Numba is imported by what needs it:
many a process only imports modules that have kernels.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

Kernel = Callable[..., Any]
_compiling = threading.Lock()
_kernels: list[tuple[str, Callable[[], None]]] = []  # the module of each, and what compiles it

_ANY = ("i4[]", "i8[]", "u4[]")  # what `n[]` stands for
_SIZED = re.compile(r"([iu])([1248])\[\]", re.IGNORECASE)


def compiled(signature: str) -> Callable[[Kernel], Kernel]:
    """A kernel of one signature; nothing is compiled, nor read from the cache, before its use.

    The signature is what comes back, a colon, and what goes in: `int`, `flag`, or an array by the
    letter of its type (i f b u) and its dimensions. An array of one dimension may be named by its
    letter and the bytes of its items instead (`i4[]`, `u8[]`; flags go in as `u1[]`), and `n[]` is
    any of i4, i8 and u4: each is compiled when it is first given. Capital arrays are written to;
    the others may be read-only, as those of a mapped file are.
    """
    result, _, taken = signature.partition(":")
    words = taken.split()
    ways = tuple(product(*(_ANY if word == "n[]" else (word,) for word in words)))
    sized = any("[]" in word for word in words)

    def wrap(function: Kernel) -> Kernel:
        ready: dict[tuple[str, ...], Kernel] = {}

        def made(way: tuple[str, ...]) -> Kernel:
            if way not in ready:
                with _compiling:
                    if way not in ready:
                        ready[way] = _built(result, way, function)
            return ready[way]

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return made(ways[0])(*arguments)

        @wraps(function)
        def call_sized(*arguments: Any) -> Any:
            return made(tuple(_way(words, arguments)))(*map(_without_flags, arguments))

        def prepare_all() -> None:
            for way in ways:
                made(way)

        _kernels.append((function.__module__, prepare_all))
        return call_sized if sized else call

    return wrap


def prepare(room: str) -> None:
    """Compiles the kernels of a room's imported modules that are not in the cache yet, and loads
    the rest: before a server takes queries."""
    for module, prepare_all in _kernels:
        if f"{module}.".startswith(f"{room}."):
            prepare_all()


def compile_all(room: str = "kalla") -> None:
    """Compiles the kernels of all modules of a room, imported or not."""
    root = Path(__file__).parent
    for file in sorted(root.rglob("*.py")):
        module = ".".join((root.name, *file.relative_to(root).with_suffix("").parts))
        if f"{module}.".startswith(f"{room}.") and "\n@compiled(" in file.read_text("utf-8"):
            import_module(module)
    prepare(room)


def helper(function: Kernel) -> Kernel:
    """A part of kernels, compiled into them."""
    import numba

    made: Kernel = numba.njit(error_model="numpy")(function)
    return made


def _way(words: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    for word, given in zip(words, arguments, strict=True):
        if word != "n[]":
            yield word
            continue
        found = f"{given.dtype.str[1:]}[]"
        if found not in _ANY:
            raise TypeError(f"cannot take an array of {given.dtype} as {word}")
        yield found


def _without_flags(given: Any) -> Any:
    flags = isinstance(given, np.ndarray) and given.dtype == np.bool_
    return given.view(np.uint8) if flags else given


def _built(result: str, taken: Sequence[str], function: Kernel) -> Kernel:
    import numba

    signature = _typed(result)(*map(_typed, taken))
    made: Kernel
    try:
        made = numba.njit(signature, nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError as problem:
        if "cannot cache" not in str(problem):
            raise
        # No folder to keep it in: each process compiles for itself.
        made = numba.njit(signature, nogil=True, error_model="numpy")(function)
    return made


def _typed(word: str) -> Any:
    from numba import types

    scalars = {"int": types.int64, "flag": types.boolean, "none": types.void}
    if word in scalars:
        return scalars[word]
    if found := _SIZED.fullmatch(word):
        kind = {"i": "int", "u": "uint"}[found[1].lower()]
        item, dimensions = getattr(types, f"{kind}{8 * int(found[2])}"), 1
    else:
        items = {"i": types.int64, "f": types.float64, "b": types.boolean, "u": types.uint8}
        item, dimensions = items[word[0].lower()], int(word[1])
    return types.Array(item, dimensions, "C", readonly=word[0].islower())


if __name__ == "__main__":
    # Kernels know this module by its name, not as __main__.
    import_module("kalla.compiling").compile_all(*sys.argv[1:])

"""Loops as machine code: compiled once on a machine, loaded by every process without the compiler.

A Spark task may run in a new process, and to import numba takes that longer than to match a million
rows. What numba makes of a loop that knows numbers and pointers alone stands by itself: it is kept
in a file for each module of loops, and loaded in a tenth of the time.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from kalla.errors import Permanent, Unavailable

Loop = Callable[..., Any]

_ANY = ("i4", "i8", "u4")  # what `n` stands for
_LOADING = threading.Lock()
_SECONDS = 300  # that compiling may take
_OWN_SOURCE = Path(__file__).read_bytes()

_written: dict[str, dict[str, _Written]] = {}  # by module and name
_sources: dict[str, bytes] = {}  # of modules, as they were when they were imported


class _Written:
    """A loop as its author wrote it. A way to call it is the types of what goes in."""

    def __init__(self, function: Loop, signature: str) -> None:
        self.function = function
        self._result, _, taken = signature.partition(": ")
        self._taken = taken.split()

    def ways(self) -> Iterator[tuple[str, ...]]:
        """All of them."""
        yield from product(*(_ANY if word == "n" else [word.lower()] for word in self._taken))

    def way(self, given: Sequence[Any]) -> tuple[str, ...]:
        """That in which it is called with these; what it cannot take would be read as another
        thing, or written over."""
        return tuple(self._type(*each) for each in zip(self._taken, given, strict=True))

    def _type(self, word: str, given: Any) -> str:
        if word == "int":
            if not (type(given) is int and -(2**63) <= given < 2**63):
                raise TypeError(f"{self.function.__name__} cannot take {given!r} as {word}")
            return word
        found = "u1" if given.dtype == np.bool_ else str(given.dtype.str[1:])
        fits = found in _ANY if word == "n" else found == word.lower()
        lies_well = given.dtype.isnative and given.flags.aligned and given.flags.c_contiguous
        if not fits or not lies_well or (word.isupper() and not given.flags.writeable):
            raise TypeError(f"{self.function.__name__} cannot take {found} as {word}")
        return found

    def at(self, address: int, way: Sequence[str]) -> Loop:
        """What is called there."""
        taken = [ctypes.c_int64 if word == "int" else ctypes.c_void_p for word in way]
        result = ctypes.c_int64 if self._result == "int" else None
        return ctypes.CFUNCTYPE(result, *taken)(address)

    def compiled(self, way: Sequence[str]) -> tuple[str, str]:
        """Its symbol and its code for LLVM."""
        from numba import cfunc, types

        def typed(word: str) -> Any:
            if word in ("int", "none"):
                return {"int": types.int64, "none": types.void}[word]
            letter = {"i": "int", "u": "uint"}[word[0]]
            pointer: Any = types.CPointer
            return pointer(getattr(types, f"{letter}{8 * int(word[1])}"))

        signature = typed(self._result)(*map(typed, way))
        made = cfunc(signature, error_model="numpy")(self.function)
        return made.native_name, made.inspect_llvm()


def loop(signature: str) -> Callable[[Loop], Loop]:
    """A function that is compiled. It may use numbers, what it is given, and nothing else.

    The signature is what comes back, `int` or `none`, a colon, and what goes in: `int`, or an array
    by its letter and the bytes of its items (i4 i8 u1 u2 u4 u8, flags as u1), `n` for i4, i8 or u4.
    Those in capitals are written to. Nothing looks whether an index is within bounds.
    """

    def wrap(function: Loop) -> Loop:
        module, name = function.__module__, function.__name__
        written = _Written(function, signature)
        _written.setdefault(module, {})[name] = written
        if module not in _sources:
            _sources[module] = Path(function.__code__.co_filename).read_bytes()
        ready: dict[tuple[str, ...], Loop] = {}

        @wraps(function)
        def call(*given: Any) -> Any:
            way = written.way(given)
            if way not in ready:
                with _LOADING:
                    _, addresses = _loaded(module)
                ready[way] = written.at(addresses[_label(name, way)], way)
            words = zip(way, given, strict=True)
            return ready[way](
                *(each if word == "int" else each.ctypes.data for word, each in words)
            )

        return call

    return wrap


def prepare(*modules: str) -> None:
    """Compile the loops of these modules, if this machine has no code of them yet."""
    for module in modules:
        importlib.import_module(module)
        _loaded(module)


@cache
def _loaded(module: str) -> tuple[Any, Mapping[str, int]]:
    """What holds the code of a module's loops in this process, and their addresses."""
    llvm = _llvm()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    codes = _code(module)
    for _, code in codes.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, {
        label: engine.get_function_address(symbol) for label, (symbol, _) in codes.items()
    }


def _code(module: str) -> dict[str, tuple[str, bytes]]:
    """The symbol and the machine code of each loop: from a file, or else made now, and kept for
    others in the first folder that takes it."""
    name = _file_name(module)
    folders = [Path(__file__).parent / "__pycache__", *_of_user()]
    for folder in folders:
        with suppress(OSError):  # there is none, or it is not ours to read
            if found := _read((folder / name).read_bytes()):
                return found
    made = _make(module, name)
    for folder in folders:
        unfinished = folder / f"{name}-{uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(made)
            unfinished.chmod(0o644)  # as other users of the package need it
            unfinished.replace(folder / name)  # another process may have been sooner
            _clear_up(folder, module)
            break
        except OSError:  # it is not ours to write, or full
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
    return _read(made)


def _clear_up(folder: Path, module: str) -> None:
    """Only the newest two stay: who imported the version before may be about to load it."""
    with suppress(OSError):  # another process does the same
        newest_last = sorted(
            folder.glob(f"{module}-*.loops"), key=lambda file: file.stat().st_mtime_ns
        )
        for old in newest_last[:-2]:
            old.unlink()


def _make(module: str, name: str) -> bytes:
    """By a process of its own: the compiler would keep a hundred megabytes of this one."""
    # -P: what lies in the folder that it starts in is not what is to be compiled.
    command = [sys.executable, "-P", "-m", "kalla.machine_code", module]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_SECONDS, env=clean, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the loops of {module} were not compiled in {_SECONDS} s") from None
    made_of, _, made = done.stdout.partition(b"\n")
    if done.returncode or not _read(made):
        raise Permanent(
            f"the loops of {module} could not be compiled; install Kalla's locked packages anew:"
            f" {done.stderr[-2_000:].decode(errors='replace')}"
        )
    if made_of.decode() != name:
        raise Permanent(f"{module} has changed since this process imported it: start it anew")
    return made


def _read(content: bytes) -> dict[str, tuple[str, bytes]]:
    """Nothing of what is not as it was written: to call it would end the process."""
    digest, _, rest = content.partition(b"\n")
    if digest != hashlib.sha256(rest).hexdigest().encode():
        return {}
    head, _, codes = rest.partition(b"\n")
    found, first = {}, 0
    for label, symbol, size in json.loads(head):
        found[label] = (symbol, codes[first : first + size])
        first += size
    return found


def _compiled(module: str) -> bytes:
    """All loops of a module, for the processor of this machine, and what they were made of."""
    llvm = _llvm()
    importlib.import_module(module)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    named, codes = [], []
    for name, written in _written[module].items():
        for way in written.ways():
            symbol, text = written.compiled(way)
            codes.append(machine.emit_object(llvm.parse_assembly(text)))
            named.append((_label(name, way), symbol, len(codes[-1])))
    content = json.dumps(named).encode() + b"\n" + b"".join(codes)
    digest = hashlib.sha256(content).hexdigest().encode()
    return b"\n".join([_file_name(module).encode(), digest, content])


def _label(name: str, way: Sequence[str]) -> str:
    return " ".join([name, *way])


def _file_name(module: str) -> str:
    """Which tells what the code was made of, by what, and for which processor."""
    llvm = _llvm()
    parts = [
        _sources[module],
        _OWN_SOURCE,
        *(metadata.version(each).encode() for each in ("numba", "llvmlite")),
        llvm.get_host_cpu_name().encode(),
        llvm.get_host_cpu_features().flatten().encode(),
    ]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return f"{module}-{digest[:16]}.loops"


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _of_user() -> list[Path]:
    """The folder for what a user's programs keep and can make again: nobody else writes there."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return [Path(given) / "kalla"]
    home = os.environ.get("HOME")
    return [Path(home) / ".cache" / "kalla"] if home else []


if __name__ == "__main__":
    # The module of loops knows this one by its name, not as the program.
    program = importlib.import_module("kalla.machine_code")
    sys.stdout.buffer.write(program._compiled(sys.argv[1]))

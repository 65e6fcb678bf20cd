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

from kalla.errors import Permanent

Loop = Callable[..., Any]

_ANY = ("i4", "i8", "u4")  # what `n` stands for
_LOADING = threading.Lock()
_SECONDS = 300  # that compiling may take
_written: dict[str, dict[str, _Written]] = {}  # by module and name


class _Written:
    """A loop as its author wrote it."""

    def __init__(self, function: Loop, signature: str) -> None:
        self.function = function
        self._result, _, taken = signature.partition(": ")
        self._taken = taken.split()

    def kinds(self) -> Iterator[tuple[str, ...]]:
        """All ways in which it can be called, each as the types of what goes in."""
        yield from product(*(_ANY if word == "n" else [word.lower()] for word in self._taken))

    def kind(self, given: Sequence[Any]) -> tuple[str, ...]:
        """How it is called with these; arrays lie in one piece, capital ones are written to."""
        found = []
        for word, each in zip(self._taken, given, strict=True):
            if word == "int":
                found.append(word)
                continue
            kind = "u1" if each.dtype == np.bool_ else each.dtype.str[1:]
            fits = kind in _ANY if word == "n" else kind == word.lower()
            writes = word.isupper()
            if not fits or not each.flags.c_contiguous or (writes and not each.flags.writeable):
                raise TypeError(f"{self.function.__name__} cannot take {kind} as {word}")
            found.append(kind)
        return tuple(found)

    def callable(self, address: int, kind: Sequence[str]) -> Loop:
        taken = [ctypes.c_int64 if word == "int" else ctypes.c_void_p for word in kind]
        result = ctypes.c_int64 if self._result == "int" else None
        return ctypes.CFUNCTYPE(result, *taken)(address)

    def compiled(self, kind: Sequence[str]) -> tuple[str, str]:
        """Its symbol and its code for LLVM."""
        from numba import cfunc, types

        def typed(word: str) -> Any:
            if word in ("int", "none"):
                return {"int": types.int64, "none": types.void}[word]
            letter = {"i": "int", "u": "uint"}[word[0]]
            pointer: Any = types.CPointer
            return pointer(getattr(types, f"{letter}{8 * int(word[1])}"))

        signature = typed(self._result)(*map(typed, kind))
        made = cfunc(signature, error_model="numpy")(self.function)
        return made.native_name, made.inspect_llvm()


def loop(signature: str) -> Callable[[Loop], Loop]:
    """A function that is compiled. It may use numbers, what it is given, and nothing else.

    The signature is what comes back, `int` or `none`, a colon, and what goes in: `int`, or an array
    by its letter and the bytes of its items (i4 i8 u1 u2 u4 u8, flags as u1), `n` for i4, i8 or u4.
    Those in capitals are written to. Nothing looks whether an index is within bounds.
    """

    def wrap(function: Loop) -> Loop:
        written = _Written(function, signature)
        _written.setdefault(function.__module__, {})[function.__name__] = written
        ready: dict[tuple[str, ...], Loop] = {}

        @wraps(function)
        def call(*given: Any) -> Any:
            kind = written.kind(given)
            if kind not in ready:
                with _LOADING:
                    address = _loaded(function.__module__)[_label(function.__name__, kind)]
                ready[kind] = written.callable(address, kind)
            words = zip(kind, given, strict=True)
            return ready[kind](
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
def _loaded(module: str) -> Mapping[str, int]:
    """The addresses of a module's loops, in this process."""
    llvm = _llvm()
    machine = llvm.Target.from_default_triple().create_target_machine()
    found = {}
    for label, (symbol, code) in _code(module).items():
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        found[label] = engine.get_function_address(symbol)
    return found


_engines: list[Any] = []  # which hold the code


def _code(module: str) -> dict[str, tuple[str, bytes]]:
    """The symbol and the machine code of each loop: from a file, or else made now, and kept for
    others in the first folder that takes it."""
    name = _file_name(module)
    folders = [Path(__file__).parent / "__pycache__", *_of_user()]
    for folder in folders:
        if (file := folder / name).is_file() and (found := _read(file.read_bytes())):
            return found
    made = _make(module)
    for folder in folders:
        unfinished = folder / f"{name}-{uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(made)
            unfinished.replace(folder / name)  # another process may have been sooner
            break
        except OSError:  # it is not ours to write, or full
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
    return _read(made)


def _make(module: str) -> bytes:
    """By a process of its own: the compiler would keep a hundred megabytes of this one."""
    command = [sys.executable, "-m", "kalla.machine_code", module]
    done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    if done.returncode or not _read(done.stdout):
        raise Permanent(
            f"the loops of {module} could not be compiled; install Kalla's locked packages anew:"
            f" {done.stderr[-2_000:].decode(errors='replace')}"
        )
    return done.stdout


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
    """All loops of a module, for the processor of this machine."""
    llvm = _llvm()
    importlib.import_module(module)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    named, codes = [], []
    for name, written in _written[module].items():
        for kind in written.kinds():
            symbol, text = written.compiled(kind)
            codes.append(machine.emit_object(llvm.parse_assembly(text)))
            named.append((_label(name, kind), symbol, len(codes[-1])))
    content = json.dumps(named).encode() + b"\n" + b"".join(codes)
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _label(name: str, kind: Sequence[str]) -> str:
    return " ".join([name, *kind])


def _file_name(module: str) -> str:
    """Which tells what the code was made of, by what, and for which processor."""
    llvm = _llvm()
    source = importlib.import_module(module).__file__ or ""
    parts = [
        *(Path(each).read_bytes() for each in (source, __file__)),
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

"""Converts a workbook in a process of its own: one whose cells are far apart would need more memory
than there is, and the reader then ends its process instead of raising an error.

A workbook is a zip of XML: one that would unpack to too much is refused before it is unpacked.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import subprocess
import sys
import zipfile
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from pathlib import Path

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import Workbook
from kalla.reconcile.sources.formats import workbooks
from kalla.reconcile.sources.formats.csv_sniffing import Decided
from kalla.reconcile.sources.formats.workbooks import ConvertedSheet

LARGEST_FILE = 512 << 20
LARGEST_UNPACKED = 1 << 30  # bytes of XML
_MEMORY = 4 << 30
_SECONDS = 300
# Threads reserve address space, which is limited here.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
_OLE = b"\xd0\xcf\x11\xe0"  # an older Excel file, or an encrypted newer one
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def to_parquet(book: Path, file: str, options: Workbook, target: Path) -> ConvertedSheet:
    """Writes the rows of a workbook's sheet; `file` is its name in messages."""
    demand_size(book.stat().st_size, file)
    _demand_harmless(book, file)
    given = json.dumps([str(book), file, options.model_dump(), str(target)])
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=given,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_SECONDS,
            env={**os.environ, **_ONE_THREAD, "PYTHONIOENCODING": "utf-8"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _wrong(
            f"{file} takes longer than {_SECONDS} s to read: save it as CSV or Parquet"
        ) from None
    if done.returncode < 0:  # ended by the memory limit
        raise _wrong(_too_large(file))
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise _wrong(f"{file} cannot be read as XLSX: {last}")
    answer = json.loads(done.stdout)
    if problem := answer.get("problem"):
        raise _wrong(problem)
    decisions = tuple(Decided(**each) for each in answer["decisions"])
    return ConvertedSheet(decisions, tuple(answer["notes"]))


def demand_size(size: int, file: str) -> None:
    """Refuses a file that is too large to be read as a whole, before it is."""
    if not size:
        raise _wrong(f"{file} is empty")
    if size > LARGEST_FILE:
        raise _wrong(f"{file} has {size:,} bytes: save it as CSV or Parquet")


def main() -> None:
    book, file, options, target = json.load(sys.stdin)
    sys.meta_path.insert(0, _WithoutPandas())
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        converted = workbooks.to_parquet(
            Path(book), file, Workbook.model_validate(options), Path(target)
        )
        answer = asdict(converted)
    except MemoryError:
        answer = {"problem": _too_large(file)}
    except InvalidInput as error:
        answer = {"problem": error.problems[0].message}
    print(json.dumps(answer))


class _WithoutPandas(MetaPathFinder):
    """Arrow imports pandas if it is there, which takes longer than most workbooks."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ImportError(fullname)


def _demand_harmless(book: Path, file: str) -> None:
    """Refuse an encrypted or older file, and one that unpacks to more than memory should hold."""
    with book.open("rb") as opened:
        if opened.read(len(_OLE)) == _OLE:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(_ENCRYPTED) >= 0:
                    raise _wrong(f"{file} is protected by a password: save a copy without one")
            raise _wrong(f"{file} is an Excel file of before 2007: save it as .xlsx")
    try:
        with zipfile.ZipFile(book) as packed:
            unpacked = sum(each.file_size for each in packed.infolist())
            names = set(packed.namelist())
    except (zipfile.BadZipFile, ValueError):
        raise _wrong(f"{file} is not an XLSX file, whatever its name says") from None
    if unpacked > LARGEST_UNPACKED:
        raise _wrong(
            f"{file} would unpack to {unpacked:,} bytes, more than {LARGEST_UNPACKED:,}: save it as"
            " CSV or Parquet"
        )
    if "[Content_Types].xml" not in names:
        raise _wrong(f"{file} is a zip archive, not an XLSX file")


def _too_large(file: str) -> str:
    return (
        f"{file} has cells so far apart that it would need too much memory: delete the empty"
        " columns and rows, or save it as CSV"
    )


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(Problem("", message))


if __name__ == "__main__":
    main()

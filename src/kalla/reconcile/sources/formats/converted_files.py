"""Files that are converted once before they are read: workbooks to Parquet, and CSV files that have
lines that are not rows, or are in Windows-1252, to plain UTF-8.

The copies are a cache in the temporary folder, named by what the file was and how it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.plurals import counted
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Csv, Workbook
from kalla.reconcile.sources.formats import workbook_process
from kalla.reconcile.sources.formats.compressed_files import plain
from kalla.reconcile.sources.formats.csv_quotes import LONGEST_LINE
from kalla.reconcile.sources.formats.csv_sniffing import Decided, not_in_encoding
from kalla.reconcile.sources.formats.workbook_process import demand_size
from kalla.reconcile.sources.formats.workbooks import ConvertedSheet
from kalla.storage import Storage, join
from kalla.storage.files import File

_KEPT_SECONDS = 24 * 3600
_FORM = 3  # of the copies; another version creates them again
_PYTHON = {"utf-8": "utf-8-sig", "utf-16": "utf-16", "windows-1252": "cp1252", "latin-1": "latin-1"}
_SHOWN = 60
_MOST_HELD = 10 * LONGEST_LINE  # characters above the header and at the end, empty lines too


@dataclass(frozen=True)
class Converted:
    """A copy that is read instead of the file, and what was left out of it."""

    path: str
    notes: tuple[str, ...]
    decisions: tuple[Decided, ...]  # of a workbook: which sheet and rows


def is_needed(csv: Csv) -> bool:
    """Whether a CSV is read from a copy: DuckDB reads no Windows-1252, and always to the end."""
    return bool(csv.skip or csv.footer or csv.encoding == "windows-1252")


def plain_dialect(csv: Csv) -> Csv:
    """How the copy is written. It keeps `skip`: errors name lines of the file itself."""
    return csv.model_copy(update={"footer": 0, "encoding": "utf-8"})


def of_csv(file: File, csv: Csv, storage: Storage, seconds: float | None = None) -> Converted:
    """`seconds` limit an inspection: a small compressed file may unpack to more than a disk."""

    def convert(target: Path) -> ConvertedSheet:
        return ConvertedSheet((), tuple(_rows_alone(file.url, csv, storage, target, seconds)))

    return _cached(file, ".csv", csv.model_dump_json(), convert)


def of_workbook(file: File, options: Workbook, storage: Storage) -> Converted:
    def convert(target: Path) -> ConvertedSheet:
        demand_size(file.size, file.url)
        book = target.with_name("source.xlsx")
        try:
            with storage.open(file.url) as opened, book.open("wb") as copy:
                shutil.copyfileobj(opened, copy, 1 << 20)
            return workbook_process.to_parquet(book, file.url, options, target)
        finally:
            book.unlink(missing_ok=True)

    return _cached(file, ".parquet", options.model_dump_json(), convert)


def within_reach(given: Input, place: str, storage: Storage) -> Input:
    """The input with its copies where Spark's executors see them too, as the cache need not be."""
    if not _are_copies(given.files):
        return given
    files = []
    for number, file in enumerate(given.files):
        files.append(join(place, f"{number:05}-{Path(file).name}"))
        storage.put(Path(file), files[-1])
    return replace(given, files=tuple(files))


def originals(given: Input) -> tuple[str, ...]:
    """The files of the source itself, also where copies of them are read."""
    if not given.marks or not _are_copies(given.files):
        return given.files
    return tuple(str(mark["file"]) for mark in given.marks)


def _are_copies(files: Sequence[str]) -> bool:
    cache = str(_cache_place())
    return any(file.startswith(f"{cache}/") for file in files)


def _rows_alone(
    url: str, csv: Csv, storage: Storage, target: Path, seconds: float | None
) -> list[str]:
    """Write the header and the rows in UTF-8; reports what is left out."""
    above: list[str] = []
    below: deque[str] = deque()
    with storage.open(url) as raw, target.open("w", encoding="utf-8", newline="") as written:
        text = io.TextIOWrapper(plain(raw, url), _PYTHON[csv.encoding], newline="")
        rest = _lines(text, url, seconds)
        try:
            held = 0
            for line in islice(rest, csv.skip):
                above.append(line)
                held = _demand_little(held + len(line), url)
            given = 0
            for line in rest:
                below.append(line)
                held = _demand_little(held + len(line), url)
                given += bool(line.strip())
                while given > csv.footer:
                    first = below.popleft()
                    held -= len(first)
                    given -= bool(first.strip())
                    written.write(first)
        except UnicodeError:
            wrong = not_in_encoding(url, csv, storage)
            raise InvalidInput(Problem("", wrong)) from None
    if (csv.skip or csv.footer) and not target.stat().st_size:
        wrong = f"{url} has no lines left after csv.skip and csv.footer"
        raise InvalidInput(Problem("", wrong))
    name = url.rpartition("/")[2]
    notes = []
    for where, left_out in (("above the header", above), ("below the rows", below)):
        if lines := [line.strip() for line in left_out if line.strip()]:
            notes.append(
                f"left out: {counted(len(lines), 'line')} of {name} {where}: {_shown(lines)}"
            )
    return notes


def _demand_little(held: int, url: str) -> int:
    if held > _MOST_HELD:
        wrong = f"{url} has more than {_MOST_HELD:,} characters in lines that are not rows"
        raise InvalidInput(Problem("", wrong))
    return held


def _lines(text: TextIO, url: str, seconds: float | None) -> Iterator[str]:
    """The lines of a file, none of which may be longer than a reader of CSV takes."""
    began = time.monotonic()
    for number in count(1):
        line = text.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            wrong = f"{url} cannot be read: line {number} has more than {LONGEST_LINE:,} characters"
            raise InvalidInput(Problem("", wrong))
        if seconds is not None and time.monotonic() - began > seconds:
            raise Unavailable(f"{url} took too long to inspect: name a part of it")
        yield line


def _shown(lines: Sequence[str]) -> str:
    text = " / ".join(lines)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _cached(
    file: File, ending: str, options: str, convert: Callable[[Path], ConvertedSheet]
) -> Converted:
    folder = cache_folder()
    described = json.dumps([_FORM, file.mark, options], sort_keys=True)
    own = folder / hashlib.sha256(described.encode()).hexdigest()
    name = file.url.rpartition("/")[2]
    stem = name if name.lower().endswith(ending) else f"{name}{ending}"
    target, described_in = own / stem, own / "decisions.json"
    if not described_in.exists():
        sweep()
        fresh = folder / f".{uuid4().hex}"
        fresh.mkdir(mode=0o700)
        try:
            converted = json.dumps(asdict(convert(fresh / stem)))
            (fresh / described_in.name).write_text(converted, "utf-8")
            fresh.rename(own)
        except OSError:
            if not described_in.exists():  # unless another process was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    os.utime(own)
    facts = json.loads(described_in.read_text("utf-8"))
    decisions = tuple(Decided(**each) for each in facts["decisions"])
    return Converted(str(target), tuple(facts["notes"]), decisions)


def cache_folder() -> Path:
    """Of this user alone, as copies hold what the files do. What is not used for a day is swept."""
    folder = _cache_place()
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InvalidInput(Problem("", f"{folder} belongs to another user: remove it"))
    return folder


def _cache_place() -> Path:
    return Path(tempfile.gettempdir()) / f"kalla-converted-{os.getuid()}"


def sweep() -> None:
    """Removes copies that were not used for a day."""
    if not _cache_place().exists():
        return
    oldest = time.time() - _KEPT_SECONDS
    for each in cache_folder().iterdir():
        try:
            if each.stat().st_mtime < oldest:
                shutil.rmtree(each, ignore_errors=True)
        except OSError:  # another process sweeps too
            continue

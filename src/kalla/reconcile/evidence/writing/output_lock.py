"""Locks the output folder of a run before it starts, so that two runs never share it; restores the
folder if the run wrote no evidence.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.leftovers import (
    METADATA,
    WORK,
    left_to_the_sweeper,
    sweep,
)
from kalla.storage import LOCAL, Storage, is_s3, join

_MARK = ".claim"
_MARK_ON_S3 = "claim-"
_FIELD = "--output"
_MISSES = 100


@contextmanager
def claimed(url: str, storage: Storage) -> Iterator[str]:
    """Locks the folder for the evidence, a path or an s3:// URL."""
    if is_s3(url):
        with _claimed_there(url, storage):
            yield url
        return
    _, path = storage.filesystem(url)
    with _claimed_here(Path(path)) as folder:
        yield str(folder)


@contextmanager
def _claimed_here(folder: Path) -> Iterator[Path]:
    """The holder of the mark's lock has the folder: a killed run loses it."""
    is_new = not folder.exists()
    mark = folder / _MARK
    descriptor = _lock(mark)
    try:
        if os.read(descriptor, 1):
            _clear(str(folder), LOCAL)  # of a run that was killed: it had found the folder empty
        _require_empty(folder)
        os.write(descriptor, b"1")
        with _kept_if_whole(str(folder), LOCAL):
            yield folder
    finally:
        mark.unlink(missing_ok=True)  # before unlock: the next holder must see this
        os.close(descriptor)
        if is_new:
            with suppress(OSError):  # it holds evidence
                folder.rmdir()


@contextmanager
def _kept_if_whole(url: str, storage: Storage) -> Iterator[None]:
    """Nothing writes there any more, so superseded files can be removed."""
    try:
        yield
    except BaseException:
        _clear(url, storage)
        raise
    with left_to_the_sweeper(url):
        sweep(url, storage)


def _lock(mark: Path) -> int:
    folder, missed = mark.parent, 0
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(mark, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            missed += 1
            # A run may have given it back meanwhile; where it never is, no folder can be made.
            if isinstance(error, FileNotFoundError) and missed < _MISSES:
                continue
            raise _refused(f"{folder} cannot be written to: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), mark.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise _refused(f"another run is writing its evidence to {folder}") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # of a run that has just ended, and that removed it


def _require_empty(folder: Path) -> None:
    if any(each.name != _MARK for each in folder.iterdir()):
        raise _refused(f"{folder} is not empty; evidence is never written over")


@contextmanager
def _claimed_there(url: str, storage: Storage) -> Iterator[None]:
    """S3 has no locks. Each run writes a mark first and lists then, so that of two runs at least
    one sees the other; possibly both.
    """
    mark = f"{_MARK_ON_S3}{uuid4().hex}"
    storage.write_text(join(url, mark), "")
    try:
        others = [name for name in storage.names(url) if name != mark]
        for name in others:
            if name.startswith(_MARK_ON_S3):
                raise _refused(
                    f"another run is writing its evidence to {url}; if it was killed, remove"
                    f" all that is in it, {name} last"
                )
        if others:
            raise _refused(f"{url} is not empty; evidence is never written over")
        with _kept_if_whole(url, storage):
            yield
    finally:
        storage.remove(join(url, mark))


def _clear(url: str, storage: Storage) -> None:
    """Removes evidence that may be incomplete."""
    work = [name for name in storage.names(url) if name.startswith((WORK, f".{METADATA}"))]
    for name in (METADATA, *work, *DATASETS):
        storage.remove(join(url, name))


def _refused(why: str) -> InvalidInput:
    return InvalidInput(Problem(_FIELD, why))

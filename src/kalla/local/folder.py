"""The data folder of one machine: disk space, one holder at a time, private files."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kalla.errors import StartFailed


class AlreadyRunning(StartFailed):
    """Another process holds the folder."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks the folder for this process; the lock ends with the process."""
    make(folder)
    path = folder / "up.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode().strip() or "unknown"
            raise AlreadyRunning(
                f"`kalla up` is already running on {folder} (pid {pid}): "
                "stop it first, or choose another folder with data_dir (or KALLA_DATA_DIR)."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def make(folder: Path) -> Path:
    """Creates the folder for this user alone, or raises why it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        reason = "no permission to write"
    except OSError as error:
        reason = error.strerror or str(error)
    raise StartFailed(
        f"The data folder {folder} cannot be used ({reason}): "
        "make it writable, or choose another with data_dir (or KALLA_DATA_DIR)."
    )


def require_space(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise StartFailed(
            f"The disk of {folder} has {in_words(free)} free, {in_words(wanted)} are wanted: "
            "make room, move it with data_dir, or lower up.min_free_bytes."
        )


def in_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def secret(path: Path) -> str:
    """The secret stored in this file; created the first time."""
    if path.is_file():
        return path.read_text("ascii").strip()
    value = secrets.token_urlsafe(24)
    write_private(path, value + "\n")
    return value


def write_private(path: Path, text: str) -> None:
    """Write a file for this user alone; a reader sees the old text or the new, never a part."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)

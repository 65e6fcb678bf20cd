"""Runs a command where nothing that it writes is seen by others.

    unshare --mount --propagation private python tests/isolation.py FOLDER COMMAND...

All that is mounted becomes read-only, and memory of its own lies over FOLDER: but for the network
it is as on another machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

_UNSHARE = ("unshare", "--mount", "--propagation", "private")
_AS_USER = (*_UNSHARE, "--user", "--map-root-user")

_READ_ONLY, _REMOUNT, _BIND = 1, 32, 4096
_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048,
          "relatime": 1 << 21}  # fmt: skip
_NOT_FILES = ("/proc", "/sys")
_SIZE = "1g"


@cache
def namespaces() -> tuple[str, ...] | None:
    """What comes before a command that is to have mounts of its own; None where it may not."""
    for command in (_UNSHARE, _AS_USER):
        try:
            done = subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], check=False,
                                  capture_output=True)  # fmt: skip
        except FileNotFoundError:
            return None
        if done.returncode == 0:
            return command
    return None


def isolated(folder: Path, command: list[str]) -> list[str]:
    """The command, with this folder as the only place that it can write to."""
    before = namespaces()
    assert before is not None
    folder.mkdir(parents=True, exist_ok=True)
    return [*before, sys.executable, str(Path(__file__).resolve()), str(folder), *command]


def main(folder: str, *command: str) -> None:
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
        fields = line.split()
        place = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields[4])
        if not f"{place}/".startswith(tuple(f"{each}/" for each in _NOT_FILES)):
            flags = sum(_FLAGS.get(option, 0) for option in fields[5].split(","))
            _mount("none", place, None, flags | _REMOUNT | _BIND | _READ_ONLY)
    for place in (folder, "/dev/shm"):
        _mount("tmpfs", place, "tmpfs", 0, f"size={_SIZE}")
    os.execvp(command[0], command)  # noqa: S606 -- a test's own


def _mount(source: str, place: str, kind: str | None, flags: int, data: str | None = None) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    given = [None if each is None else each.encode() for each in (source, place, kind, data)]
    if library.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3]) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)


if __name__ == "__main__":
    main(*sys.argv[1:])

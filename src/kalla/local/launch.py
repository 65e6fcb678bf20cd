"""Becomes a server that dies with its parent. A separate script: nothing else runs after fork.

Arguments: parent's pid, signal at its death, identity (self, namespace or nobody), command.
"""

import ctypes
import os
import sys
from pathlib import Path

NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 1 << 2
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CLONE_NEWUSER = 0x10000000
_CAPABILITIES_VERSION_3 = 0x20080522
# Either lets nobody pass folders that are root's alone, such as /root. Containers keep the first.
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def main(parent: int, death_signal: int, identity: str, command: list[str]) -> None:
    take_identity(identity)
    if sys.platform == "linux":
        # After the change of identity, which would clear it.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The parent ended before the server began.")
    os.execvp(command[0], command)  # noqa: S606


def take_identity(identity: str) -> None:
    """Stop being root, which Postgres refuses to be: by another name for it, or by giving it up."""
    if identity == "namespace":
        user, group = os.geteuid(), os.getegid()
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "no user namespace")
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1", encoding="ascii")
    elif identity == "nobody":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        # Otherwise access(2), by which initdb looks for its programs, ignores what is kept.
        libc.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        keep_folder_access(libc)


def keep_folder_access(libc: ctypes.CDLL) -> None:
    """Give up every capability but one that passes folders, and keep that across exec.

    Without one of them the server starts only where everybody may read the data folder.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    for capability in (_CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE):
        bit = 1 << capability
        # Effective, permitted and inheritable, first of capabilities 0 to 31, then of the others.
        sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
        if libc.capset(header, sets) == 0:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])

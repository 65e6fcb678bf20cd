"""Becomes a server that dies with its parent. A script of its own: nothing else runs after fork.

Arguments: parent's pid, signal at its death, identity (self, namespace or nobody), command.
"""

import ctypes
import os
import sys
from pathlib import Path

NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000


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
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])

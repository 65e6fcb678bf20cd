"""Compiles `control.proto`, at set-up and when a wheel is built; the result is not in git.

It imports nothing of Kalla: the build hook loads this file before Kalla is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
GENERATED = ("control_pb2.py", "control_pb2.pyi")


def compile_protocol() -> list[Path]:
    """The files written, next to the `.proto`."""
    from grpc_tools import protoc

    status = protoc.main(
        [
            "protoc",
            f"--proto_path={FOLDER}",
            f"--python_out={FOLDER}",
            f"--pyi_out={FOLDER}",
            str(FOLDER / "control.proto"),
        ]
    )
    if status != 0:
        raise SystemExit(f"control.proto could not be compiled (protoc ended with {status})")
    return [FOLDER / name for name in GENERATED]


if __name__ == "__main__":
    for path in compile_protocol():
        sys.stdout.write(f"{path}\n")

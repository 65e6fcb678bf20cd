"""Reads `.sql` files of named statements: `-- name: claim` starts one, the next name ends it."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Statements:
    """The statements of one file, as attributes: `sql.claim`."""

    def __init__(self, text: str, origin: str) -> None:
        parts = _NAME.split(text)
        self._origin = origin
        self._texts = {
            name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)
        }

    def __getattr__(self, name: str) -> bytes:
        try:
            return self._texts[name].encode()
        except KeyError:
            raise AttributeError(f"{self._origin} has no statement named {name}") from None


@cache
def load(package: str, name: str) -> Statements:
    return Statements((files(package) / name).read_text("utf-8"), f"{package}/{name}")

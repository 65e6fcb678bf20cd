"""JSON documents that Postgres can store; checked before a bad one breaks a shared statement."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_DEEPEST = 100
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # an escaped NUL, not a backslash before "u0000"


def document(value: Any) -> str:
    """The value as JSON; ValueError says what is wrong with it, as the end of a sentence."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except RecursionError:
        raise ValueError(f"is nested deeper than {_DEEPEST} levels") from None
    except UnicodeEncodeError:
        raise ValueError("contains half a surrogate pair, which Postgres cannot store") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if _NUL.search(text):
        raise ValueError("contains a NUL character, which Postgres cannot store")
    if _depth_exceeds(value, _DEEPEST):
        raise ValueError(f"is nested deeper than {_DEEPEST} levels")
    return text


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []

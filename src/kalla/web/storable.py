"""Checks texts and documents of callers: refuses the fields that Postgres cannot store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

_DEEPEST = 64
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which Postgres cannot store")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not a character") from None
    return text


def _storable_document(document: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            _storable(json.dumps(document, ensure_ascii=False))
            return document
    raise ValueError(f"is nested deeper than {_DEEPEST} levels")


def replaced(value: Any) -> Any:
    """Replaces what Postgres cannot store by U+FFFD: for values of rows, which a caller cannot
    correct.
    """
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {replaced(key): replaced(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [replaced(item) for item in value]
    return value


Text = Annotated[
    str, AfterValidator(_storable), Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})
]
Document = Annotated[dict[str, Any], AfterValidator(_storable_document)]

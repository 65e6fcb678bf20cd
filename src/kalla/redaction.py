"""Keeps secrets out of logs, errors, payloads and pages: the one place that knows their looks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MASK = "***"

_URL_PASSWORD = re.compile(
    r"(?P<head>[a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/?#@\"']*):(?P<secret>[^\s/\"']+)@"
)
_KEY_VALUE = re.compile(
    r"(?P<head>\b[\w-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|credential)[\w-]*"
    r"[\"']?\s*[=:]\s*[\"']?)(?P<secret>(?!secret://)[^\s\"'&,;)}\]]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\bbearer\s+)(?P<secret>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_KALLA_TOKEN = re.compile(r"(?P<head>\bkalla_)(?P<secret>[A-Za-z0-9_-]{16,})")
_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|\bpwd\b|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential",
    re.IGNORECASE,
)


def scrub(text: str) -> str:
    """The same text with everything that looks like a secret masked."""
    for pattern in (_URL_PASSWORD, _BEARER, _KALLA_TOKEN, _KEY_VALUE):
        text = pattern.sub(_mask, text)
    return text


def scrub_value(value: Any, name: str = "") -> Any:
    """The same structure with secrets masked, by the name they stand under and by their looks."""
    if isinstance(value, str):
        if name and is_secret_name(name) and value and not value.startswith("secret://"):
            return MASK
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: scrub_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [scrub_value(item, name) for item in value]
    return value


def secrets_in(value: Any, path: str = "") -> Iterator[str]:
    """The paths inside a document at which a secret stands in the clear."""
    if isinstance(value, str):
        if _URL_PASSWORD.search(value) or _KALLA_TOKEN.search(value):
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            below = f"{path}.{key}" if path else str(key)
            if is_secret_name(str(key)) and isinstance(item, str) and item:
                if not item.startswith("secret://"):
                    yield below
            else:
                yield from secrets_in(item, below)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for index, item in enumerate(value):
            yield from secrets_in(item, f"{path}[{index}]")


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _mask(match: re.Match[str]) -> str:
    tail = "@" if match.group(0).endswith("@") else ""
    separator = ":" if tail else ""
    return f"{match.group('head')}{separator}{MASK}{tail}"

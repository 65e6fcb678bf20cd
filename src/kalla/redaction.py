"""Keeps secrets out of logs, errors, payloads and pages: the one place that knows their looks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MASK = "***"

# What Kalla says of a field called password, word by word: no value begins so.
_SENTENCES = (
    r"(?-i:there is no (?:stored )?secret |the secret '|is another secret than |is missing\b"
    r"|is needed for |is not (?:a field|the one) |must name a secret\b|must be text\b"
    r"|must not be (?:empty|longer|true)\b|cannot be read\b|name a secret instead\b"
    r"|holds a (?:secret|password)\b)"
)
# Each starts at its keyword and counts its repeats, so that long texts take linear time.
_URL_PASSWORD = re.compile(r"(?P<head>://[^\s:/?#@\"']{0,256}):(?!\*\*\*@)(?P<secret>[^\s/\"]+)@")
_NATS_TOKEN = re.compile(r"(?P<head>\b(?:nats|tls|wss?)://)(?P<secret>[^\s:/?#@\"']{1,512})@")
_KEY_VALUE = re.compile(
    r"(?P<head>(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|credential)[\w-]{0,64}"
    rf"\\?[\"']?\s{{0,8}}[=:](?!//)\s{{0,8}})(?!\\?[\"']?secret://)(?!(?<=: ){_SENTENCES})"
    r"(?P<secret>\\?\"[^\"\n]+\"|\\?'[^'\n]+'|[^\s\"'&,;)}\]]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\bbearer\s{1,8})(?P<secret>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
# Words may follow in a sentence, such as "Bearer certificates": what is sent has a digit or a sign,
# or is longer than a word. Masked is either; refused is only this.
_SENT_BEARER = re.compile(
    r"\bbearer\s{1,8}(?:(?=[A-Za-z._~+/=-]{0,512}[0-9_~+/=])[A-Za-z0-9._~+/=-]{8,}"
    r"|[A-Za-z0-9._~+/=-]{24,})",
    re.IGNORECASE,
)
# 43 signs at random: a name of a file that begins so is shorter, or has no capitals.
_KALLA_TOKEN = re.compile(
    r"(?P<head>\bkalla_)(?=[a-z0-9_-]{0,42}[A-Z])(?P<secret>[A-Za-z0-9_-]{43,})"
)
_MASKED = (
    (_URL_PASSWORD, rf"\g<head>:{MASK}@"),
    (_NATS_TOKEN, rf"\g<head>{MASK}@"),
    (_BEARER, rf"\g<head>{MASK}"),
    (_KALLA_TOKEN, rf"\g<head>{MASK}"),
    (_KEY_VALUE, rf"\g<head>{MASK}"),
)
_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|\bpwd\b|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential",
    re.IGNORECASE,
)
_CONNINFO_PASSWORD = re.compile(
    r"\b(?:host|user|dbname)=.*\bpassword=|\bpassword=.*\b(?:host|user)="
)
_PLAIN_SECRETS = (_URL_PASSWORD, _KALLA_TOKEN, _SENT_BEARER, _CONNINFO_PASSWORD)


def scrub(text: str) -> str:
    """The same text with everything that looks like a secret masked."""
    for pattern, masked in _MASKED:
        text = pattern.sub(masked, text)
    return text


def scrub_value(value: Any, name: str = "") -> Any:
    """The same structure with secrets masked, by the name they stand under and by their looks."""
    if isinstance(value, str):
        if name and is_secret_name(name) and value and not value.startswith("secret://"):
            return MASK
        return scrub(value)
    if isinstance(value, Mapping):
        return {
            key: scrub_value(item, name if name and is_secret_name(name) else str(key))
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [scrub_value(item, name) for item in value]
    return value


def secrets_in(value: Any, path: str = "", named: bool = False) -> Iterator[str]:
    """The paths inside a document at which a secret stands in the clear.

    `named`: a name above tells of a secret. `token = …` inside a text is none: it may be SQL.
    """
    if isinstance(value, str):
        is_plain = named and value and not value.startswith("secret://")
        if is_plain or any(pattern.search(value) for pattern in _PLAIN_SECRETS):
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            below = f"{path}.{key}" if path else str(key)
            yield from secrets_in(item, below, named or is_secret_name(str(key)))
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for index, item in enumerate(value):
            yield from secrets_in(item, f"{path}[{index}]", named)


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None

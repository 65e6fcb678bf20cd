"""What schemathesis cannot know: how remote write's bodies are sent, and which keys were used."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import schemathesis


@schemathesis.serializer("application/x-protobuf")
def as_bytes(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def before_call(_: Any, case: Any, __: Any) -> None:
    """A key belongs to one request: one that was used for another is refused, and rightly."""
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and 1 <= len(key) <= 255:
        case.headers["Idempotency-Key"] = uuid4().hex

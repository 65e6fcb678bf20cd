"""What schemathesis cannot know by itself: how the bodies of remote write are sent, and that an
Idempotency-Key is for one request."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import schemathesis

_KEY = "Idempotency-Key"


@schemathesis.serializer("application/x-protobuf")
def as_bytes(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def before_call(_: Any, case: Any, **__: Any) -> None:
    """Gives every request with a valid key a key of its own: made-up keys come up again, and a
    key that another request had is refused."""
    key = case.headers.get(_KEY) if case.headers else None
    if isinstance(key, str) and 1 <= len(key) <= 255:
        case.headers[_KEY] = str(uuid4())

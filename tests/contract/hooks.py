"""What schemathesis cannot know by itself: how the bodies of remote write are sent."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-protobuf")
def as_bytes(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()

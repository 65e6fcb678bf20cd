"""The version of the control protocol and of artifacts, and the checksum that both sides compute.

A module of its own: it loads without the engine, whose compiler takes seconds.
"""

from __future__ import annotations

import pyarrow as pa
import xxhash

PROTOCOL_VERSION = 1
SCHEMA_VERSION = 1


def checksum_of(content: bytes | memoryview | pa.Buffer) -> str:
    return xxhash.xxh3_128_hexdigest(memoryview(content))

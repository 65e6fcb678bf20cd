"""Takes samples of a topic: from the beginning and the end of every partition."""

from __future__ import annotations

from collections.abc import Mapping

from kalla.sinks.servers.consumer_lag import log_ends
from kalla.sinks.servers.message_ranges import Message, OffsetRange, OffsetsGone
from kalla.sinks.servers.reader import Reader

_SECONDS = 15.0


def take_samples(settings: Mapping[str, str], topic: str, limit: int) -> list[Message]:
    """Blocking. At most `limit` messages; none of them is delivered or committed."""
    ends = {each: log for each, log in log_ends(settings, topic).items() if log[1] > log[0]}
    if not ends:
        return []
    share = max(1, limit // (2 * len(ends)))
    reader = Reader(settings)
    found: list[Message] = []
    try:
        for partition, (low, high) in sorted(ends.items()):
            middle = min(high, low + share)
            for start, end in ((low, middle), (max(middle, high - share), high)):
                if end > start and len(found) < limit:
                    try:
                        span = OffsetRange(topic, partition, start, end)
                        for batch in reader.read(span, _SECONDS):
                            found += batch
                    except OffsetsGone:  # retention removed it first: other samples suffice
                        continue
    finally:
        reader.close()
    return found[:limit]

"""Answers queries from a folder of segments in this process: no server, no catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalla.query.dispatch.query_records import QueryRecord
from kalla.query.service.query_request import QueryReply, QueryRequest
from kalla.settings import Settings
from kalla.storage import Storage, join

if TYPE_CHECKING:
    import pyarrow as pa

    from kalla.query.store.segments import Segment


def answered(question: QueryRequest, url: str, settings: Settings) -> QueryReply:
    """Within the limits of an API's queries."""
    from kalla.query.engine import Engine
    from kalla.query.service.query_service import limits_of, plan_settings
    from kalla.query.store.segment_cache import SegmentCache
    from kalla.query.store.segment_folder import segments_of
    from kalla.query.store.segment_source import SegmentSource

    storage, own = Storage.of(settings.storage), settings.query_worker

    def content(segment: Segment) -> pa.Buffer:
        return storage.mapped(join(url, segment.path)).read_buffer()

    listed = segments_of(storage, url)
    shards = 1 + max(segment.shard for segment in listed)
    cache = SegmentCache(storage, url, own.memory_bytes, content)
    options = question.options
    most = settings.metrics.query_seconds
    seconds = most if options.seconds is None else min(options.seconds, most)
    engine = Engine(
        SegmentSource(cache, listed, shards),
        plan_settings(options),
        limits_of(settings.metrics, seconds),
        own.threads,
    )
    answer = engine.run(question.expr, question.text, question.steps, question.step_ms)
    stages = (("parse", question.parse_seconds), *answer.stats.seconds.items())
    return QueryReply(question, answer, stages, QueryRecord(question.text, ""))

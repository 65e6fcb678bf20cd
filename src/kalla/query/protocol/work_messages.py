"""Work units as messages and back: leaves, selections, listings, segments and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.evaluate.partial_aggregates import Reduction
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import (
    ExecutionFailed,
    LimitReached,
    NativeHistograms,
    QueryError,
    Stopped,
    TimedOut,
)
from kalla.query.promql.syntax_tree import Extension, MatchOperator
from kalla.query.protocol import control_pb2 as pb
from kalla.query.store.segments import Segment, SegmentBroken

_OPERATORS = frozenset(get_args(MatchOperator))
_ERRORS: dict[str, type[QueryError]] = {
    "native_histograms": NativeHistograms,
    "limit": LimitReached,
    "segment": SegmentBroken,
    "timeout": TimedOut,
    "stopped": Stopped,
    "execution": ExecutionFailed,
}


@dataclass(frozen=True)
class LeafWork:
    """A leaf on a shard; its artifact is a `Partial`."""

    leaf: BaseExpr


@dataclass(frozen=True)
class SelectWork:
    """The samples themselves; the artifact is a `SeriesBatch`."""

    matchers: tuple[Matcher, ...]
    after: int
    until: int


@dataclass(frozen=True)
class ListWork:
    """Label sets that any selector matches; the artifact lists them."""

    selectors: tuple[tuple[Matcher, ...], ...]
    after: int
    until: int


Work = LeafWork | SelectWork | ListWork


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to know to do one work unit."""

    work: Work
    shard: int
    shards: int
    segments: tuple[Segment, ...]
    listed: int
    limits: Limits

    @property
    def bounds(self) -> tuple[int, int]:
        return (
            self.work.leaf.bounds
            if isinstance(self.work, LeafWork)
            else (
                self.work.after,
                self.work.until,
            )
        )


def assignment_message(key: pb.WorkKey, given: Assignment) -> pb.AssignWork:
    message = pb.AssignWork(
        key=key,
        shard=given.shard,
        shards=given.shards,
        segments=[_segment(one) for one in given.segments],
        listed=given.listed,
        limits=pb.Limits(
            samples=given.limits.samples,
            series=given.limits.series,
            memory_bytes=given.limits.memory_bytes,
            seconds=given.limits.seconds,
        ),
    )
    match given.work:
        case LeafWork(leaf):
            message.leaf.CopyFrom(_leaf(leaf))
        case SelectWork(matchers, after, until):
            message.select.CopyFrom(
                pb.Select(matchers=_matchers(matchers), after=after, until=until)
            )
        case ListWork(selectors, after, until):
            listed = [pb.Selector(matchers=_matchers(one)) for one in selectors]
            message.list_series.CopyFrom(pb.ListSeries(selectors=listed, after=after, until=until))
    return message


def assignment_of(message: pb.AssignWork) -> Assignment:
    work: Work
    match message.WhichOneof("work"):
        case "leaf":
            work = LeafWork(_leaf_of(message.leaf))
        case "select":
            asked = message.select
            work = SelectWork(_matchers_of(asked.matchers), asked.after, asked.until)
        case "list_series":
            listing = message.list_series
            selectors = tuple(_matchers_of(one.matchers) for one in listing.selectors)
            work = ListWork(selectors, listing.after, listing.until)
        case _:
            raise ExecutionFailed("the work unit names no work that this query worker knows")
    limits = message.limits
    return Assignment(
        work,
        message.shard,
        message.shards,
        tuple(_segment_of(one, message.shard) for one in message.segments),
        message.listed,
        Limits(limits.samples, limits.series, limits.memory_bytes, limits.seconds),
    )


def error_name(error: QueryError) -> tuple[str, str]:
    """The name and the text of a final failure in a message."""
    if isinstance(error, NativeHistograms):
        return "native_histograms", error.what
    for name, kind in _ERRORS.items():
        if isinstance(error, kind):
            return name, str(error)
    return "execution", str(error)


def error_of(name: str, reason: str) -> QueryError:
    return _ERRORS.get(name, ExecutionFailed)(reason)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(content: bytes) -> str:
    return content.decode(errors="surrogatepass")


def _matchers(given: Sequence[Matcher]) -> list[pb.Matcher]:
    return [
        pb.Matcher(name=_bytes(one.name), operator=one.operator, value=_bytes(one.value))
        for one in given
    ]


def _matchers_of(given: Sequence[pb.Matcher]) -> tuple[Matcher, ...]:
    if not {one.operator for one in given} <= _OPERATORS:
        raise ExecutionFailed("a matcher has an operator that this query worker does not know")
    return tuple(
        Matcher(_text(one.name), cast(MatchOperator, one.operator), _text(one.value))
        for one in given
    )


def _leaf(leaf: BaseExpr) -> pb.Leaf:
    message = pb.Leaf(
        matchers=_matchers(leaf.matchers),
        steps=pb.Steps(start=leaf.steps.start, end=leaf.steps.end, step=leaf.steps.step),
        lookback=leaf.lookback,
        function=leaf.function,
        range=leaf.range,
        offset=leaf.offset,
        extension=leaf.extension,
        parameters=[pb.Parameter(values=values) for values in leaf.parameters],
        start_timestamps=leaf.start_timestamps,
        delayed_names=leaf.delayed_names,
        counted=leaf.counted,
    )
    if leaf.at is not None:
        message.at = leaf.at
    if (reduction := leaf.reduction) is not None:
        message.reduction.CopyFrom(
            pb.Reduction(
                operator=reduction.operator,
                grouping=[_bytes(name) for name in reduction.grouping],
                without=reduction.without,
                parameter=reduction.parameter,
            )
        )
    return message


def _leaf_of(message: pb.Leaf) -> BaseExpr:
    reduction = None
    if message.HasField("reduction"):
        given = message.reduction
        grouping = tuple(_text(name) for name in given.grouping)
        reduction = Reduction(given.operator, grouping, given.without, tuple(given.parameter))
    return BaseExpr(
        _matchers_of(message.matchers),
        Steps(message.steps.start, message.steps.end, message.steps.step),
        message.lookback,
        message.function,
        message.range,
        message.offset,
        message.at if message.HasField("at") else None,
        cast(Extension, message.extension),
        tuple(tuple(one.values) for one in message.parameters),
        message.start_timestamps,
        message.delayed_names,
        reduction,
        message.counted,
    )


_SEGMENT_FIELDS = (
    "segment_id", "level", "min_time", "max_time", "path", "row_group", "row_groups", "rows",
    "samples", "bytes", "checksum",
)  # fmt: skip


def _segment(segment: Segment) -> pb.Segment:
    return pb.Segment(**{name: getattr(segment, name) for name in _SEGMENT_FIELDS})


def _segment_of(message: pb.Segment, shard: int) -> Segment:
    return Segment(shard=shard, **{name: getattr(message, name) for name in _SEGMENT_FIELDS})

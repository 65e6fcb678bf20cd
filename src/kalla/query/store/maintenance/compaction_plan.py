"""Which segments become one: a decision over the live ones, and how it keeps a reader's choice.

Of two samples of a series and time the one acknowledged first wins, and segments tell which that is
by their order: higher level first, then lower number. A merge may only take what is next to each
other in that order, wherever times overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kalla.query.store.segment_rows import BLOCK_MS as BLOCK
from kalla.query.store.segments import Segment

HOUR = 3_600_000
WINDOWS = (BLOCK, 12 * HOUR, 72 * HOUR)

# What closes a window begins at a level of its own, above all that small merges can reach before.
_CLOSED_AT = (10, 20, 30)

_SLACK = HOUR // 4  # a window is closed when the newest sample is so far beyond its end
_WORTH = 8  # a closed window is merged again when what came late is an eighth of the rest


@dataclass(frozen=True)
class Bounds:
    """What one merge may take, for a task holds it in memory; and how many segments are many."""

    many: int = 8
    segments: int = 400
    samples: int = 16_000_000
    bytes: int = 256 << 20
    # Of windows larger than a block. What is larger stays in blocks: a query reads whole objects.
    wide_samples: int = 8_000_000


@dataclass(frozen=True)
class Merge:
    """Segments of one shard, in the order that decides between them, and the level they get."""

    shard: int
    level: int
    inputs: tuple[Segment, ...]

    @property
    def samples(self) -> int:
        return sum(each.samples for each in self.inputs)


def plan(
    live: Iterable[Segment], busy: AbstractSet[int] = frozenset(), bounds: Bounds | None = None
) -> list[Merge]:
    """Every merge that is worth it now; they share no segment and may be done in any order.

    `busy` are segments that another job works on, or could not read: they stay as they are.
    """
    by_shard: defaultdict[int, list[Segment]] = defaultdict(list)
    for each in sorted(live, key=lambda segment: segment.seniority):
        by_shard[each.shard].append(each)
    newest = max((each.max_time for held in by_shard.values() for each in held), default=0)
    found: list[Merge] = []
    for shard in sorted(by_shard):
        found += _Shard(by_shard[shard], newest, busy, bounds or Bounds()).merges()
    return found


def together(merges: Iterable[Merge], bounds: Bounds | None = None) -> list[tuple[Merge, ...]]:
    """Small merges that read the same objects, as one task: each object is then read once."""
    most = (bounds or Bounds()).samples
    groups: list[list[Merge]] = []
    by_object: dict[tuple[int, str], list[Merge]] = {}
    for merge in merges:
        keys = [(merge.level, each.path) for each in merge.inputs]
        group = next((by_object[key] for key in keys if key in by_object), [])
        if (
            merge.level >= _CLOSED_AT[0]
            or any(other.shard == merge.shard for other in group)
            or merge.samples + sum(other.samples for other in group) > most
        ):
            group = []
        if not group:
            groups.append(group)
        group.append(merge)
        by_object |= dict.fromkeys(keys, group)
    return [tuple(group) for group in groups]


def span(level: int) -> int:
    """How much time a segment of this level covers at most, and at which multiples it begins."""
    wider = zip(WINDOWS[1:], _CLOSED_AT[1:], strict=True)
    return max([BLOCK, *(window for window, first in wider if level >= first)])


def keeps_order(merge: Merge, others: Iterable[Segment]) -> bool:
    """Whether every other segment comes before or after the merged one as it did before."""
    return all(
        (other.seniority < each.seniority) == (other.level >= merge.level)
        for other in others
        for each in merge.inputs
        if _overlap(other, each)
    )


class _Shard:
    def __init__(
        self, segments: list[Segment], newest: int, busy: AbstractSet[int], bounds: Bounds
    ) -> None:
        self._newest = newest
        self._busy = busy
        self._bounds = bounds
        self._fresh = [each for each in segments if each.level == 0]
        self._sorted = [each for each in segments if each.level > 0]
        self._inside = {window: _inside(self._sorted, window) for window in WINDOWS}
        self._crossed = {window: _crossed(self._sorted, window) for window in WINDOWS}

    def merges(self) -> list[Merge]:
        found: list[Merge] = []
        taken = set(self._busy)
        for merge in self._candidates():
            numbers = {each.segment_id for each in merge.inputs}
            others = (each for each in self._sorted if each.segment_id not in numbers)
            if taken.isdisjoint(numbers) and (merge.level == 1 or keeps_order(merge, others)):
                taken |= numbers
                found.append(merge)
        return found

    def _candidates(self) -> Iterator[Merge]:
        run, cut_short = self._run_of_fresh()
        crowded = len(run) >= self._bounds.many or cut_short
        if run and (crowded or self._closes_something(run)):
            yield _merge(run)
        for window, first in zip(WINDOWS, _CLOSED_AT, strict=True):
            for place, members in self._inside[window].items():
                if self._is_closed(place, window) and _worth(members):
                    yield from self._closing(members, window, first)
        for members in self._inside[BLOCK].values():
            yield from self._crowded(members)

    def _run_of_fresh(self) -> tuple[list[Segment], bool]:
        """The oldest level 0 segments, and whether a merge cannot take all of them.

        Their samples may lie anywhere in time, so none is passed over that came before another
        one and shares its time.
        """
        left: list[Segment] = []
        able: list[Segment] = []
        for each in self._fresh:
            barred = each.segment_id in self._busy or any(_overlap(each, other) for other in left)
            (left if barred else able).append(each)
        run = self._first(able)
        return run, len(run) < len(able) >= self._bounds.many

    def _closes_something(self, run: Sequence[Segment]) -> bool:
        """Whether a block is closed of which these are no small part."""
        blocks: defaultdict[int, list[Segment]] = defaultdict(list)
        for each in run:
            for place in {each.min_time // BLOCK, each.max_time // BLOCK}:
                blocks[place].append(each)
        return any(
            self._is_closed(place, BLOCK) and _worth([*self._inside[BLOCK].get(place, ()), *fresh])
            for place, fresh in blocks.items()
        )

    def _is_closed(self, place: int, window: int) -> bool:
        """Nothing new is expected there, and nothing of it lies in something wider."""
        ended = (place + 1) * window + _SLACK <= self._newest
        return ended and place not in self._crossed[window]

    def _closing(self, members: list[Segment], window: int, first: int) -> Iterator[Merge]:
        if window > BLOCK:
            if sum(each.samples for each in members) <= self._bounds.wide_samples:
                yield _merge(members, first)
        elif len(run := self._first(members)) > 1:
            yield _merge(run, first)

    def _crowded(self, members: list[Segment]) -> Iterator[Merge]:
        """Small segments of a level. A large one before them goes up with them, or it would be
        overtaken."""
        levels: defaultdict[int, list[Segment]] = defaultdict(list)
        for each in members:
            levels[each.level].append(each)
        for alike in levels.values():
            small = [each for each in alike if each.samples <= self._bounds.samples // 2]
            if len(small) >= self._bounds.many:
                yield _merge(self._first(alike))

    def _first(self, members: Sequence[Segment]) -> list[Segment]:
        """As many as one merge may take, but one at least."""
        samples, size = 0, 0
        for place, each in enumerate(members):
            samples, size = samples + each.samples, size + each.bytes
            bounds = self._bounds
            if place == bounds.segments or samples > bounds.samples or size > bounds.bytes:
                return list(members[: max(place, 1)])
        return list(members)


def _inside(segments: Sequence[Segment], window: int) -> dict[int, list[Segment]]:
    """The segments that lie in each window, by its place."""
    found: defaultdict[int, list[Segment]] = defaultdict(list)
    for each in segments:
        if each.min_time // window == each.max_time // window:
            found[each.min_time // window].append(each)
    return found


def _crossed(segments: Sequence[Segment], window: int) -> set[int]:
    """The places of windows that a segment reaches beyond."""
    return {
        place
        for each in segments
        if each.min_time // window < each.max_time // window
        for place in range(each.min_time // window, each.max_time // window + 1)
    }


def _merge(inputs: Sequence[Segment], base: int = 0) -> Merge:
    level = max(base, max(each.level for each in inputs) + 1)
    return Merge(inputs[0].shard, level, tuple(inputs))


def _worth(members: Sequence[Segment]) -> bool:
    samples = [each.samples for each in members]
    return len(samples) > 1 and (sum(samples) - max(samples)) * _WORTH >= max(samples)


def _overlap(one: Segment, other: Segment) -> bool:
    return one.min_time <= other.max_time and other.min_time <= one.max_time

"""The list of segments in Postgres: a query reads only segments in it.

Typed rows over `catalogue.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import Conflict, NotFound
from kalla.query.promql.matchers import readable
from kalla.query.store.segments import NewSegment, Segment
from kalla.statements import load

sql = load("kalla.query.store", "catalogue.sql")

_LONGEST_NAME = 500
_FIELDS = tuple(field.name for field in fields(Segment))


@dataclass(frozen=True)
class Metadata:
    """Metadata of a metric; `type` as Prometheus names it."""

    type: str = "unknown"
    help: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Listing:
    """One consistent set: the segments of a time, and how many each shard has at all times."""

    segments: tuple[Segment, ...]
    listed: Mapping[int, int]


async def add(connection: Connection, new: Sequence[NewSegment]) -> None:
    if new:
        await connection.execute(sql.take_turns)
        given = Jsonb([vars(segment) for segment in new])
        await connection.execute(sql.add, {"segments": given})


async def replace(
    connection: Connection, olds: Sequence[Segment], news: Sequence[NewSegment]
) -> None:
    """The new ones in the place of the old; Conflict if another did that before."""
    ids = sorted({segment.segment_id for segment in olds})
    cursor = await connection.execute(sql.retire, {"segment_ids": ids})
    retired = {row["segment_id"] for row in await cursor.fetchall()}
    if missing := [number for number in ids if number not in retired]:
        raise Conflict(
            f"the segments {', '.join(map(str, missing))} were replaced or removed meanwhile: drop "
            "what was made of them"
        )
    await add(connection, news)


async def live(connection: Connection, after: int, until: int) -> list[Segment]:
    """The segments that may have samples of (after, until], oldest first."""
    cursor = await connection.execute(sql.live, {"after": after, "until": until})
    return [segment_of(row) for row in await cursor.fetchall()]


async def following(connection: Connection, after: int, limit: int) -> tuple[list[Segment], int]:
    """Live segments behind a number, and how many there are behind it in all."""
    cursor = await connection.execute(sql.following, {"after": after, "limit": limit})
    found = [segment_of(row) for row in await cursor.fetchall()]
    (row,) = await (await connection.execute(sql.count_following, {"after": after})).fetchall()
    return found, row["left"]


async def still_live(connection: Connection, segment_ids: Sequence[int]) -> list[Segment]:
    cursor = await connection.execute(sql.still_live, {"segment_ids": list(segment_ids)})
    return [segment_of(row) for row in await cursor.fetchall()]


async def segment(connection: Connection, segment_id: int) -> Segment:
    """One that is live."""
    found = await still_live(connection, [segment_id])
    if not found:
        raise NotFound(
            f"there is no segment {segment_id}, or it was merged into another: `kalla metrics "
            "check` shows those that are damaged"
        )
    return found[0]


async def drop(connection: Connection, segment_id: int) -> Segment:
    """Removes it from all later queries; its file is deleted like that of a replaced one.

    Excludes compaction: a merge that has read it finds it removed and changes nothing; after a
    merge there is nothing to drop.
    """
    await connection.execute(sql.take_turns)
    found = await segment(connection, segment_id)
    await connection.execute(sql.retire, {"segment_ids": [segment_id]})
    return found


async def snapshot(
    connection: Connection, after: int, until: int, known: dict[int, Segment]
) -> Listing:
    """The segments that may have samples of (after, until]; what is `known` is not read."""
    cursor = await connection.execute(sql.snapshot, {"after": after, "until": until})
    rows = await cursor.fetchall()
    ids = [number for row in rows for number in row["segment_ids"] or ()]
    if fresh := [number for number in ids if number not in known]:
        cursor = await connection.execute(sql.described, {"segment_ids": fresh})
        known.update({row["segment_id"]: segment_of(row) for row in await cursor.fetchall()})
    if missing := [str(number) for number in ids if number not in known]:
        raise Conflict(f"the segments {', '.join(missing)} have just been removed: try again")
    listed = {row["shard"]: row["listed"] for row in rows}
    return Listing(tuple(known[number] for number in ids), listed)


async def newest(connection: Connection) -> int | None:
    """The time of the newest sample there is."""
    (row,) = await (await connection.execute(sql.newest)).fetchall()
    found: int | None = row["newest"]
    return found


async def shards(connection: Connection, wanted: int) -> int:
    """How many shards series are spread over: this number if none was stored before."""
    await connection.execute(sql.fix_shards, {"shards": wanted})
    (row,) = await (await connection.execute(sql.shards)).fetchall()
    found: int = row["shards"]
    return found


async def note_metadata(connection: Connection, metadata: Mapping[str, Metadata]) -> None:
    """The latest metadata of a metric counts. Text that Postgres cannot store must not block
    samples: invalid bytes are replaced, and names that are too long are left out.
    """
    given = {
        _storable(metric): {name: _storable(text) for name, text in vars(entry).items()}
        for metric, entry in metadata.items()
        if len(metric) <= _LONGEST_NAME
    }
    if given:
        rows = [{"metric": metric, **entry} for metric, entry in given.items()]
        await connection.execute(sql.note_metadata, {"metadata": Jsonb(rows)})


async def metadata_changed_at(connection: Connection) -> datetime | None:
    """When metadata last changed."""
    (row,) = await (await connection.execute(sql.metadata_changed_at)).fetchall()
    found: datetime | None = row["metadata_changed_at"]
    return found


def _storable(text: str) -> str:
    return readable(text).replace("\0", "\ufffd")


async def metadata(
    connection: Connection, metric: str | None = None, limit: int | None = None
) -> dict[str, Metadata]:
    cursor = await connection.execute(sql.metadata, {"metric": metric, "limit": limit})
    return {
        row["metric"]: Metadata(row["type"], row["help"], row["unit"])
        for row in await cursor.fetchall()
    }


def segment_of(row: Mapping[str, Any]) -> Segment:
    return Segment(**{name: row[name] for name in _FIELDS})


def by_shard(segments: Iterable[Segment]) -> dict[int, list[Segment]]:
    """In the order in which samples were acknowledged."""
    found: dict[int, list[Segment]] = {}
    for segment in sorted(segments, key=lambda segment: segment.seniority):
        found.setdefault(segment.shard, []).append(segment)
    return found

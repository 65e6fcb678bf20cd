"""Segments that are damaged: found by reading all, given up in turns with compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalla.errors import Conflict, NotFound
from kalla.query.labels.label_sets import Labels
from kalla.query.store import catalogue, segments
from kalla.query.store import metric_store as store_module
from kalla.query.store.metric_store import MetricStore
from kalla.query.store.segments import Segment, SegmentBroken
from tests.metrics_kit import commit, contents, metric_store, metrics_settings, named

EVER = (-(2**60), 2**60)
MANY: dict[Labels, list[tuple[int, float]]] = {
    named("m", i=str(i)): [(1000 + i, float(i)), (9_000_000, 0.5)] for i in range(20)
}


async def verdicts(store: MetricStore) -> dict[int, str]:
    """Of all segments, as many calls as it takes."""
    found: dict[int, str] = {}
    after: int | None = 0
    while after is not None:
        checked = await store.check(after)
        found |= {each.segment.segment_id: each.problem for each in checked.verdicts}
        after = checked.last
    assert checked.left == 0
    return found


async def live(store: MetricStore) -> list[Segment]:
    async with store.database.transaction() as connection:
        return await catalogue.live(connection, *EVER)


async def drop(store: MetricStore, segment_id: int) -> Segment:
    async with store.database.transaction() as connection:
        return await catalogue.drop(connection, segment_id)


async def test_a_check_names_what_is_damaged_missing_or_listed_wrongly(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_CHECKED_AT_ONCE", 5)
    async with metric_store(metrics_settings(database_url, tmp_path, shards=2)) as store:
        assert await verdicts(store) == {}
        for _ in range(4):
            await commit(store, MANY)
        held = await live(store)
        assert await verdicts(store) == {one.segment_id: "" for one in held}
        paths = list(dict.fromkeys(one.path for one in held))
        bent = tmp_path / paths[0]
        content = bytearray(bent.read_bytes())
        content[len(content) // 2] ^= 1
        bent.write_bytes(content)
        (tmp_path / paths[1]).unlink()
        wrong = held[-1].segment_id
        async with store.database.transaction() as connection:
            await connection.execute(
                "UPDATE kalla.segments SET samples = samples + 1 WHERE segment_id = %s", [wrong]
            )
        found = await verdicts(store)
        assert list(found) == [one.segment_id for one in held]
        words = {paths[0]: "is damaged", paths[1]: "does not exist"}
        for one in held:
            expected = words.get(one.path, "listed are" if one.segment_id == wrong else "")
            problem = found[one.segment_id]
            assert (expected in problem, bool(problem)) == (True, bool(expected))


async def test_queries_go_on_without_a_segment_that_was_dropped(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, MANY)
        await commit(store, {named("other"): [(5, 1.0)]})
        first, second = await live(store)
        (tmp_path / first.path).write_bytes(b"no Parquet")
        with pytest.raises(SegmentBroken, match="drop-segment"):
            (await store.snapshot(*EVER)).select(0, [], *EVER)
        assert (await drop(store, first.segment_id)).samples == 40
        found = (await store.snapshot(*EVER)).select(0, [], *EVER)
        assert contents(found) == {named("other"): [(5, 1.0)]}
        assert await verdicts(store) == {second.segment_id: ""}


async def test_of_a_drop_and_a_merge_the_first_counts(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, MANY)
        await commit(store, {named("other"): [(5, 1.0)]})
        olds = await live(store)
        batch = (await store.snapshot(*EVER)).select(0, [], *EVER)
        news = segments.write(store.storage, store.url, 1, {0: batch})
        await drop(store, olds[0].segment_id)
        # What was dropped does not come back by a merge that had read it.
        with pytest.raises(Conflict):
            async with store.database.transaction() as connection:
                await catalogue.replace(connection, olds, news)
        assert await live(store) == olds[1:]
        async with store.database.transaction() as connection:
            await catalogue.replace(connection, olds[1:], news)
        for gone in olds:
            with pytest.raises(NotFound, match="merged into another"):
                await drop(store, gone.segment_id)
        assert [one.level for one in await live(store)] == [1]

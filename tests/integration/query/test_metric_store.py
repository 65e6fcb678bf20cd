"""The metric store over a folder and a real catalogue: durable commits, consistent snapshots."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from kalla.errors import Conflict
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.matchers import Matcher
from kalla.query.store import catalogue, segments
from kalla.query.store.catalogue import Metadata
from kalla.query.store.metric_store import MetricStore
from kalla.query.store.segments import NewSegment, SegmentBroken
from tests.metrics_kit import (
    batch_of,
    commit,
    contents,
    metric_store,
    metrics_settings,
    named,
    spread,
)
from tests.servers import S3Server

UP, DOWN = named("up", job="a"), named("down")
EVER = (-(2**60), 2**60)


async def everything(store: MetricStore) -> dict[object, object]:
    source = await store.snapshot(*EVER)
    return {
        labels: points
        for shard in range(source.shards)
        for labels, points in contents(source.select(shard, [], *EVER)).items()
    }


async def labels_of(
    store: MetricStore, matchers: list[Matcher], after: int, until: int
) -> list[Labels]:
    source = await store.snapshot(after, until)
    return sorted(source.labels([matchers], after, until))


def objects(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


async def live(store: MetricStore) -> list[segments.Segment]:
    async with store.database.transaction() as connection:
        return await catalogue.live(connection, *EVER)


async def compact(store: MetricStore, olds: list[segments.Segment]) -> list[NewSegment]:
    """One new object of all samples of the old segments."""
    source = await store.snapshot(*EVER)
    batches = {shard: source.select(shard, [], *EVER) for shard in range(source.shards)}
    return segments.write(store.storage, store.url, 1, batches)


async def test_what_was_committed_is_selected(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 1.0), (2000, 0.0)], DOWN: [(1000, 5.0)]})

        source = await store.snapshot(0, 5000)

    found = source.select(0, [Matcher("__name__", "=", "up")], 0, 5000)
    assert contents(found) == {UP: [(1000, 1.0), (2000, 0.0)]}


async def test_an_empty_store_answers_with_nothing(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path)) as store:
        assert await everything(store) == {}
        assert await store.newest() is None
        assert await labels_of(store, [], *EVER) == []
        await store.commit({}, {})
        assert await everything(store) == {}


async def test_a_commit_is_one_object_for_all_shards(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=4)) as store:
        series = {named("m", i=str(i)): [(1000 + i, float(i))] for i in range(20)}
        await commit(store, series)
        held = await live(store)

        assert await everything(store) == series
        assert await store.newest() == 1019
    assert [one.shard for one in held] == [0, 1, 2, 3]
    assert len({one.path for one in held}) == 1
    assert len(objects(tmp_path)) == 1


async def test_another_process_sees_what_was_committed(database_url: str, tmp_path: Path) -> None:
    settings = metrics_settings(database_url, tmp_path)
    async with metric_store(settings) as here, metric_store(settings) as there:
        assert await everything(there) == {}
        await commit(here, {UP: [(1000, 1.0)]})
        await commit(here, {UP: [(2000, 2.0)]})

        assert await everything(there) == {UP: [(1000, 1.0), (2000, 2.0)]}


async def test_a_commit_sent_again_changes_nothing(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        await commit(store, {UP: [(1000, 1.0)]})
        await commit(store, {UP: [(1000, 9.0), (500, 0.5)]})

        assert await everything(store) == {UP: [(500, 0.5), (1000, 1.0)]}


async def test_a_snapshot_holds_still(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        before = await store.snapshot(*EVER)
        await commit(store, {UP: [(2000, 2.0)]})
        olds = await live(store)
        news = await compact(store, olds)
        async with store.database.transaction() as connection:
            await catalogue.replace(connection, olds, news)

        after = await store.snapshot(*EVER)

        assert contents(before.select(0, [], *EVER)) == {UP: [(1000, 1.0)]}
        assert contents(after.select(0, [], *EVER)) == {UP: [(1000, 1.0), (2000, 2.0)]}
        assert after.select(0, [], *EVER).read["segments"] == 1


async def test_a_snapshot_sees_old_segments_or_new_ones_while_they_are_replaced(
    database_url: str, tmp_path: Path
) -> None:
    """A compaction that changes the value makes visible which of them were seen."""
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 0.0)]})
        seen: set[tuple[float, ...]] = set()
        done = asyncio.Event()

        async def look() -> None:
            while not done.is_set():
                found = await everything(store)
                assert list(found) == [UP]
                seen.add(tuple(value for _, value in found[UP]))  # type: ignore[attr-defined]

        looking = asyncio.create_task(look())
        for turn in range(1, 15):
            series = {UP: [(1000 + extra, float(turn)) for extra in range(turn)]}
            news = segments.write(store.storage, store.url, 1, {0: batch_of(series)})
            olds = await live(store)
            async with store.database.transaction() as connection:
                await catalogue.replace(connection, olds, news)
        done.set()
        await looking

        assert seen <= {(0.0,), *((float(turn),) * turn for turn in range(1, 15))}


async def test_only_one_of_two_compactions_of_a_segment_counts(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        await commit(store, {UP: [(2000, 2.0)]})
        olds = await live(store)
        first, second = await compact(store, olds), await compact(store, olds[:1])
        async with store.database.transaction() as connection:
            await catalogue.replace(connection, olds, first)

        with pytest.raises(Conflict, match=str(olds[0].segment_id)):
            async with store.database.transaction() as connection:
                await catalogue.replace(connection, olds[:1], second)

        assert [one.path for one in await live(store)] == [one.path for one in first]


async def test_the_first_acknowledged_wins_after_compaction_too(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        await commit(store, {UP: [(1000, 2.0), (2000, 2.0)]})
        olds = await live(store)
        news = await compact(store, olds)
        await commit(store, {UP: [(1000, 3.0), (2000, 3.0), (3000, 3.0)]})
        async with store.database.transaction() as connection:
            await catalogue.replace(connection, olds, news)

        assert await everything(store) == {UP: [(1000, 1.0), (2000, 2.0), (3000, 3.0)]}


async def test_segments_are_numbered_in_the_order_of_their_commits(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        [one] = await live(store)
        fields = {name: getattr(one, name) for name in NewSegment.__dataclass_fields__}
        entered = asyncio.Event()

        async def late() -> None:
            async with store.database.transaction() as connection:
                entered.set()
                await catalogue.add(connection, [replace(NewSegment(**fields), path="late")])

        async with store.database.transaction() as connection:
            await catalogue.add(connection, [replace(NewSegment(**fields), path="early")])
            waiting = asyncio.create_task(late())
            await entered.wait()
            async with await psycopg.AsyncConnection.connect(database_url) as onlooker:
                for _ in range(2000):
                    blocked = await onlooker.execute(
                        "SELECT FROM pg_stat_activity WHERE datname = current_database()"
                        " AND cardinality(pg_blocking_pids(pid)) > 0"
                    )
                    await onlooker.commit()
                    if blocked.rowcount or waiting.done():
                        break
            assert not waiting.done()
        await waiting

        assert [each.path for each in await live(store)][1:] == ["early", "late"]


async def test_the_number_of_shards_is_kept_whatever_the_setting_says(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=3)) as store:
        assert await store.shards() == 3
        await commit(store, {UP: [(1000, 1.0)], DOWN: [(1000, 2.0)]})
    with capture_logs() as logs:
        async with metric_store(metrics_settings(database_url, tmp_path, shards=8)) as store:
            assert await store.shards() == 3
            assert (await store.snapshot(*EVER)).shards == 3
            await commit(store, {UP: [(2000, 2.0)]})
            assert await everything(store) == {UP: [(1000, 1.0), (2000, 2.0)], DOWN: [(1000, 2.0)]}
    # Servers of other tests, too, may write to the log meanwhile.
    kept = [log for log in logs if log["event"] == "the metric store keeps its number of shards"]
    assert [(log["log_level"], log["shards"], log["setting"]) for log in kept] == [
        ("warning", 3, 8)
    ]


async def test_two_processes_that_begin_at_once_agree_on_the_shards(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        metric_store(metrics_settings(database_url, tmp_path, shards=2)) as one,
        metric_store(metrics_settings(database_url, tmp_path, shards=5)) as other,
    ):
        found = await asyncio.gather(one.shards(), other.shards())

    assert set(found) in ({2}, {5})


async def test_a_batch_for_a_shard_that_is_not_there_is_refused(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=2)) as store:
        with pytest.raises(ValueError, match="no shard 2"):
            await store.commit({2: batch_of({UP: [(1, 1.0)]})})

        assert await everything(store) == {}


async def test_a_commit_that_the_catalogue_did_not_take_is_not_seen(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        async with store.database.transaction() as connection:
            await connection.execute(
                "ALTER TABLE kalla.segments ADD CHECK (min_time < 2000) NOT VALID"
            )

        with pytest.raises(psycopg.errors.CheckViolation):
            await commit(store, {UP: [(2000, 1.0)]})

        assert await everything(store) == {UP: [(1000, 1.0)]}
        assert len(objects(tmp_path)) == 2


async def test_labels_are_found_by_matchers_and_time(database_url: str, tmp_path: Path) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path)) as store:
        day = 24 * 3600 * 1000
        await commit(store, {UP: [(1000, 1.0)], DOWN: [(1000, 1.0)]})
        await commit(store, {UP: [(5 * day, 1.0)]})

        assert await labels_of(store, [], *EVER) == [DOWN, UP]
        assert await labels_of(store, [], day, 6 * day) == [UP]
        assert await labels_of(store, [Matcher("job", "=", "")], *EVER) == [DOWN]


async def test_what_is_told_of_metrics_is_kept_and_the_last_word_counts(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path)) as store:
        await store.commit({}, {"up": Metadata("gauge", "old"), "b": Metadata("counter", "", "s")})
        await store.commit({}, {"up": Metadata("gauge", "new")})

        assert await store.metadata() == {
            "b": Metadata("counter", "", "s"),
            "up": Metadata("gauge", "new", ""),
        }
        assert list(await store.metadata(limit=1)) == ["b"]
        assert await store.metadata("up") == {"up": Metadata("gauge", "new")}
        assert await store.metadata("nothing") == {}


async def test_the_newest_word_on_a_metric_counts_whichever_process_was_told(
    database_url: str, tmp_path: Path
) -> None:
    settings = metrics_settings(database_url, tmp_path)
    async with metric_store(settings) as one, metric_store(settings) as other:
        for store, word in ((one, "x"), (other, "y"), (one, "x"), (one, "x"), (other, "y")):
            await store.commit({}, {"up": Metadata("gauge", word)})
            assert await one.metadata() == {"up": Metadata("gauge", word)}


async def test_metadata_that_are_repeated_are_not_written_again(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []

    async def note(_: object, metadata: object) -> None:
        written.append(metadata)

    async with metric_store(metrics_settings(database_url, tmp_path)) as store:
        both = {"a": Metadata("gauge"), "b": Metadata("counter")}
        await store.commit({}, both)
        monkeypatch.setattr(catalogue, "note_metadata", note)
        await store.commit({}, both)
        await store.commit({}, both | {"b": Metadata("counter", "new")})
    assert written == [{"b": Metadata("counter", "new")}]


async def test_metadata_that_postgres_cannot_keep_does_not_keep_samples_away(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        odd = {"a\0": Metadata("gauge", "\udcff\0"), "n" * 100_000: Metadata("gauge")}
        await store.commit({0: batch_of({UP: [(1000, 1.0)]})}, odd)

        assert await everything(store) == {UP: [(1000, 1.0)]}
        assert await store.metadata() == {"a\ufffd": Metadata("gauge", "\ufffd\ufffd")}


async def test_a_missing_object_fails_queries_that_need_it_and_no_others(
    database_url: str, tmp_path: Path
) -> None:
    async with metric_store(metrics_settings(database_url, tmp_path, shards=1)) as store:
        await commit(store, {UP: [(1000, 1.0)]})
        await commit(store, {UP: [(9000, 1.0)]})
        first, _ = await live(store)
        (tmp_path / first.path).unlink()

        source = await store.snapshot(5000, 9000)
        assert contents(source.select(0, [], 5000, 9000)) == {UP: [(9000, 1.0)]}
        with pytest.raises(SegmentBroken, match=first.path):
            await everything(store)


async def test_a_store_on_s3_works_as_one_in_a_folder(
    database_url: str, s3_server: S3Server, bucket: str
) -> None:
    settings = metrics_settings(database_url, f"{bucket}/metrics", s3_server.settings, shards=4)
    series = {named("m", i=str(i)): [(1000, float(i))] for i in range(8)}
    async with metric_store(settings) as store:
        await store.commit(spread(series, 4), {"m": Metadata("gauge")})

        assert await everything(store) == series

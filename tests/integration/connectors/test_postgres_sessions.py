"""Sessions with a PostgreSQL source: snapshots, refusals, and secrets that stay secret."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput, KallaError, Permanent, Unavailable
from kalla.local import ports
from kalla.spark.connectors.connector import Predicate, Slice
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.spark.connectors.postgres_link import ArrowSession, Link
from tests.integration.connectors.conformance import Row, read_all, rows_of
from tests.integration.connectors.postgres_shelf import PostgresShelf
from tests.waiting import until


def test_all_slices_in_a_snapshot_see_one_moment(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE TABLE t (id int4 PRIMARY KEY, v int4);"
        "INSERT INTO t SELECT n, 0 FROM generate_series(1, 400) n"
    )
    source = shelf.connector("t")
    with source.held_snapshot() as snapshot:
        fixed = pickle.loads(pickle.dumps(source.at(snapshot)))  # noqa: S301
        slices = fixed.split(4)
        found = []
        for part in slices:
            found += rows_of(fixed.read(part))
            shelf.run(
                "UPDATE t SET v = v + 1; DELETE FROM t WHERE id % 7 = 0;"
                "INSERT INTO t SELECT max(id) + 1, 9 FROM t"
            )
        assert Counter(found) == Counter((n, 0) for n in range(1, 401))
        assert fixed.estimate().rows == 400
    assert Counter(read_all(source, slices)) != Counter(found)


def test_without_a_key_a_snapshot_is_read_in_ctid_ranges_even_while_rows_move(
    shelf: PostgresShelf,
) -> None:
    shelf.run(
        "CREATE TABLE t (id int4, filler text);"
        "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 1000) n"
    )
    source = shelf.connector("t")
    with source.held_snapshot() as snapshot:
        fixed = source.at(snapshot)
        assert "ctid ranges" in fixed.estimate().notes[0]
        slices = fixed.split(4)
        assert len(slices) == 4
        found: list[int] = []
        for part in slices:
            got = [row[0] for row in rows_of(fixed.read(part, ["id"]))]
            assert 100 < len(got) < 400
            found += got
            shelf.run("UPDATE t SET filler = 'moved'")
        assert sorted(found) == list(range(1, 1001))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            shelf.run("SET lock_timeout = 50; CLUSTER t; TRUNCATE t")


@contextmanager
def refilled(shelf: PostgresShelf) -> Iterator[None]:
    """`t` is emptied and filled again meanwhile; that ends when a session waits for it."""

    def end() -> None:
        with psycopg.connect(shelf.url, autocommit=True) as watching:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until(lambda: watching.execute(waiting).fetchone() != (0,), "somebody waits for t")
        other.commit()

    with psycopg.connect(shelf.url) as other, ThreadPoolExecutor(1) as beside:
        other.execute("TRUNCATE t; INSERT INTO t SELECT n, 'new' FROM generate_series(1, 100) n")
        ended = beside.submit(end)
        yield
        ended.result()


def test_a_table_that_is_refilled_is_never_seen_empty(
    shelf: PostgresShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for that with a moment already seen has neither the old rows nor the new."""
    shelf.run("CREATE TABLE t (id int4 PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old')")
    source = shelf.connector("t")
    with refilled(shelf), source.held_snapshot() as snapshot:
        fixed = source.at(snapshot)
        assert len(read_all(fixed, fixed.split(2))) == 100

    begin = Link.arrow

    @contextmanager
    def begun_meanwhile(self: Link, *given: str | None) -> Iterator[ArrowSession]:
        with refilled(shelf), begin(self, *given) as session:
            yield session

    monkeypatch.setattr(Link, "arrow", begun_meanwhile)
    assert len(rows_of(source.read(Slice(0, 1)))) == 100


def test_a_source_that_bounds_the_wait_for_a_table_is_waited_for(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int4 PRIMARY KEY, v text)")
    shelf.run(f"ALTER DATABASE {urlsplit(shelf.url).path[1:]} SET lock_timeout = '1ms'")
    source = shelf.connector("t")
    with refilled(shelf):
        assert source.schema()
    with refilled(shelf), source.held_snapshot() as snapshot:
        assert len(rows_of(source.at(snapshot).read(Slice(0, 1)))) == 100


def test_a_materialized_view_is_held_in_a_snapshot_like_a_table(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE MATERIALIZED VIEW m AS SELECT n FROM generate_series(1, 100) n;"
        "CREATE UNIQUE INDEX ON m (n)"
    )
    source = shelf.connector("m")
    with source.held_snapshot() as snapshot:
        fixed = source.at(snapshot)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            shelf.run("SET lock_timeout = 50; REFRESH MATERIALIZED VIEW m")
        assert len(read_all(fixed, fixed.split(2))) == 100


def test_a_snapshot_that_has_ended_is_an_error_that_trying_again_does_not_mend(
    shelf: PostgresShelf,
) -> None:
    shelf.run("CREATE TABLE t (id int4)")
    with shelf.connector("t").held_snapshot() as snapshot:
        late = shelf.connector("t").at(snapshot)
    with pytest.raises(Permanent, match=r"snapshot .* has ended"):
        list(late.read(late.split(1)[0]))
    with pytest.raises(Permanent, match="has ended"):
        shelf.connector("t").at(replace(snapshot, name="'; DROP TABLE t; --")).schema()


def test_a_snapshot_is_marked_by_what_its_own_transaction_sees(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int4); INSERT INTO t VALUES (1)")
    source = shelf.connector("t")
    before = source.clock()
    with source.held_snapshot() as snapshot:
        shelf.run("INSERT INTO t VALUES (2)")
        mark = pickle.loads(pickle.dumps(source.at(snapshot))).mark()  # noqa: S301
        with psycopg.connect(shelf.url, autocommit=True) as other:
            later = other.execute("SELECT pg_current_snapshot()::text").fetchone()
            written = other.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s) >= 0", (mark["lsn"],)
            ).fetchone()
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            other.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'".encode())
            same = other.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert mark.keys() == {"table", "snapshot", "lsn", "at"}
    assert (mark["table"], written) == ("public.t", (True,))
    assert (mark["snapshot"],) == same != later
    assert before <= (mark["at"] or "") <= source.clock()
    assert datetime.fromisoformat(before).utcoffset() == timedelta(0)


def test_without_a_snapshot_a_table_is_marked_by_times_alone(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int4)")
    source = shelf.connector("t")
    mark = source.mark()
    assert (mark["table"], mark["snapshot"]) == ("public.t", None)
    assert (mark["read_from"] or "") <= source.clock()


def test_a_server_that_keeps_its_log_position_back_is_read_all_the_same(
    shelf: PostgresShelf,
) -> None:
    shelf.run(
        "CREATE TABLE t (id int4); INSERT INTO t VALUES (1);"
        "REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC"
    )
    with shelf.clerk("GRANT SELECT, UPDATE ON t TO {}") as clerk:
        source = replace(shelf.connector("t"), uri=clerk)
        with source.held_snapshot() as snapshot:
            fixed = source.at(snapshot)
            assert fixed.mark()["lsn"] is None
            assert read_all(fixed, fixed.split(1)) == [(1,)]


def test_whose_snapshot_is_lost_may_try_again_with_a_new_one(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int4); INSERT INTO t VALUES (1)")
    source = shelf.connector("t")

    def read_while_held(*, lost: bool) -> list[Row]:
        with source.held_snapshot() as snapshot:
            if lost:
                shelf.cut("%pg_export_snapshot%")
            fixed = source.at(snapshot)
            try:
                return read_all(fixed, fixed.split(1))
            except Permanent as error:  # of a task of Spark's
                raise pickle.loads(pickle.dumps(error)) from None  # noqa: S301

    with pytest.raises(Unavailable, match=r"snapshot .* has ended: .* must be read anew"):
        read_while_held(lost=True)
    assert read_while_held(lost=False) == [(1,)]


@pytest.mark.parametrize(
    "limit", ["statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"]
)
def test_a_source_that_bounds_its_sessions_lets_a_read_take_its_time(
    shelf: PostgresShelf, limit: str
) -> None:
    shelf.run(
        "CREATE TABLE t (id int4); INSERT INTO t VALUES (1);"
        "CREATE FUNCTION slowly() RETURNS int4 LANGUAGE sql"
        " AS 'SELECT id FROM t, pg_sleep(0.5)';"
        "CREATE VIEW slow AS SELECT slowly() AS id"
    )
    shelf.run(f"ALTER DATABASE {urlsplit(shelf.url).path[1:]} SET {limit} = '300ms'")
    source = shelf.connector("slow")
    with source.held_snapshot() as snapshot:
        fixed = source.at(snapshot)
        assert read_all(fixed, fixed.split(1)) == [(1,)]
        assert read_all(fixed, fixed.split(1)) == [(1,)], "the snapshot is still held"


def test_what_fails_while_a_snapshot_is_held_stays_what_it_is(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int4)")
    with (
        pytest.raises(FileNotFoundError, match="elsewhere"),
        shelf.connector("t").held_snapshot(),
    ):
        raise FileNotFoundError("elsewhere")


def test_a_wrong_password_is_refused_and_not_repeated(shelf: PostgresShelf) -> None:
    wrong = PostgresConnector(shelf.uri, "t", SecretStr("not-the-password"))
    with pytest.raises(InvalidInput, match="authentication failed") as refused:
        wrong.schema()
    assert "not-the-password" not in everything_said(refused.value) + repr(wrong) + str(wrong)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://u:open-sesame@127.0.0.1/db",
        "postgresql://u@127.0.0.1/db?password=open-sesame",
        "postgresql://u:open%zzsesame@127.0.0.1/db",
        "postgresql://u@127.0.0.1/db?passfile=/etc/passwd",
        "postgresql://u@127.0.0.1/db?options=-cfoo",
        "postgresql:///db",
        "postgresql://127.0.0.1",
        "host=127.0.0.1 user=u dbname=db",
    ],
)
def test_an_address_with_a_password_or_strange_options_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput, match="uri") as refused:
        PostgresConnector(uri, "t")
    assert "sesame" not in everything_said(refused.value)


def test_the_passwords_of_the_worker_are_not_tried_on_a_source(
    shelf: PostgresShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", shelf.secret)
    with pytest.raises(InvalidInput, match="refuses"):
        PostgresConnector(shelf.uri, "t").schema()


def test_what_a_database_knows_of_itself_is_not_read(shelf: PostgresShelf) -> None:
    shelf.run("CREATE SCHEMA kalla")
    shelf.run("CREATE TABLE kalla.secrets (id int)")
    shelf.run(f"ALTER DATABASE {urlsplit(shelf.url).path[1:]} SET search_path = kalla, public")
    for name in (
        "pg_authid",
        "pg_catalog.pg_class",
        "information_schema.tables",
        "kalla.secrets",
        "secrets",
    ):
        with pytest.raises(InvalidInput, match="which is not a source of rows"):
            shelf.connector(name).schema()


def test_rows_that_a_policy_hides_are_an_error_unless_a_view_leaves_them_out(
    shelf: PostgresShelf,
) -> None:
    shelf.run(
        "CREATE TABLE t (id int4 PRIMARY KEY, tenant text);"
        "INSERT INTO t SELECT n, CASE WHEN n % 2 = 0 THEN 'us' ELSE 'them' END"
        " FROM generate_series(1, 10) n;"
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY ours ON t FOR SELECT USING (tenant = 'us');"
        "CREATE VIEW ours AS SELECT * FROM t WHERE tenant = 'us'"
    )
    with shelf.clerk("GRANT SELECT ON t, ours TO {}") as clerk:
        secured = replace(shelf.connector("t"), uri=clerk)
        for ask in (
            secured.estimate,
            lambda: secured.split(2),
            lambda: list(secured.read(Slice(0, 1))),
        ):
            with pytest.raises(InvalidInput, match=r"would hide rows .*BYPASSRLS, or read a view"):
                ask()
        view = replace(shelf.connector("ours"), uri=clerk)
        assert len(read_all(view, view.split(2))) == 5
        shelf.run(f"ALTER ROLE {urlsplit(clerk).username} BYPASSRLS")
        assert len(read_all(secured, secured.split(2))) == 10


def test_a_hurried_session_waits_for_no_lock(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int PRIMARY KEY)")
    hurried = replace(shelf.connector("t"), seconds=0.1)
    with psycopg.connect(shelf.url) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        for ask in (hurried.schema, hurried.estimate, lambda: list(hurried.read(Slice(0, 1)))):
            with pytest.raises(Unavailable, match="broke off: canceling"):
                ask()
    assert hurried.estimate().rows == 0


def test_a_server_that_is_away_is_unavailable() -> None:
    nobody = PostgresConnector(
        f"postgresql://u@127.0.0.1:{ports.choose_free()}/db", "t", SecretStr("open-sesame")
    )
    with pytest.raises(Unavailable, match=r"Postgres at 127\.0\.0\.1") as away:
        nobody.split(2)
    assert "sesame" not in everything_said(away.value)


def test_a_filter_that_the_server_cannot_read_is_the_users_error(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id uuid PRIMARY KEY)")
    wrong = shelf.connector("t", predicates=(Predicate("id", "eq", "no uuid"),))
    with pytest.raises(InvalidInput, match="no uuid") as refused:
        read_all(wrong, wrong.split(1))
    assert "COPY" not in everything_said(refused.value), "the query stays out of it"


def test_a_source_is_never_written_to(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE TABLE log (id int4); CREATE FUNCTION noisy() RETURNS int4 LANGUAGE sql VOLATILE"
        " AS 'INSERT INTO log VALUES (1) RETURNING id'; CREATE VIEW t AS SELECT noisy() AS id"
    )
    with pytest.raises(KallaError, match="read-only"):
        read_all(shelf.connector("t"), shelf.connector("t").split(1))


def everything_said(error: BaseException) -> str:
    """The error and all that hangs on it, as a traceback would show it."""
    said, seen = "", error
    while True:
        said += f"{seen!r} {seen} "
        following = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        if following is None:
            return said
        seen = following

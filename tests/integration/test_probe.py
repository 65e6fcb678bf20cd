"""The built-in probe, with a real Spark: it counts, and a cancel reaches the running query."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from pydantic import SecretStr
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from kalla.errors import BrokeOff, Cancelled, Permanent, Unavailable
from kalla.local import ports
from kalla.operate.probe import Probe
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import SparkSessions
from kalla.work.handler import Context
from kalla.work.job import Job
from tests.servers import SparkServer


def a_job(fence: int = 1, failures: int = 0, **payload: object) -> Job:
    return Job(1, fence, "probe", "exec", dict(payload), 0, failures, 3, 15, 60, None, None, None)


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSessions]:
    sessions = SparkSessions(
        SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    )
    yield sessions
    sessions.close()


@pytest.mark.spark
def test_it_counts_with_spark(spark: SparkSessions) -> None:
    outcome = Probe(spark).run(a_job(count=12_345), Context())
    assert outcome.result is not None
    assert outcome.result["counted"] == 12_345
    assert outcome.rows == 12_345


@pytest.mark.spark
def test_taking_the_job_away_interrupts_its_query_and_no_other(spark: SparkSessions) -> None:
    context, begun = Context(), threading.Barrier(3)
    ended: dict[int, type[Exception] | None] = {}

    def query(job: Job, context: Context, rows: int) -> None:
        try:
            with spark.session(job, context) as session:
                begun.wait(30)
                session.sql(f"SELECT max(xxhash64(id, id + 1)) FROM range({rows})").collect()
            ended[job.fence] = None
        except Exception as error:
            ended[job.fence] = type(error)

    doomed = threading.Thread(target=query, args=(a_job(1), context, 10**13))
    spared = threading.Thread(target=query, args=(a_job(2), Context(), 10**8))
    for thread in (doomed, spared):
        thread.start()
    begun.wait(30)
    doomed.join(1.0)
    assert doomed.is_alive(), "it takes days"
    context.end("job 1 was cancelled")
    doomed.join(60)
    spared.join(60)
    assert ended == {1: Cancelled, 2: None}


@pytest.mark.spark
def test_an_interrupted_query_leaves_the_cores_free_whenever_the_interrupt_comes(
    spark: SparkSessions,
) -> None:
    for attempt, delay in enumerate((0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)):
        context, ended = Context(), threading.Event()
        timer = threading.Timer(delay, context.end, ("cancelled",))
        timer.start()
        with pytest.raises(Cancelled), spark.session(a_job(attempt), context) as session:
            # A text of its own each time, so that Spark compiles it anew.
            session.sql(f"SELECT max(xxhash64(id, {attempt})) FROM range({10**13})").collect()
        timer.join()

        def count() -> None:
            assert Probe(spark).run(a_job(count=1_000), Context()).rows == 1_000
            ended.set()  # noqa: B023 -- joined below

        threading.Thread(target=count, daemon=True).start()
        assert ended.wait(60), f"something still holds the cores, interrupted after {delay} s"


@pytest.mark.spark
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT UNAVAILABLE FROM range(1)",
        "SELECT `[INVALID_HANDLE.SESSION_CLOSED]` FROM range(1)",
        "SELECT raise_error('StatusCode.UNAVAILABLE: SESSION_NOT_FOUND') FROM range(1)",
        "SELECT 'UNAVAILABLE",
    ],
)
def test_what_users_say_of_servers_and_sessions_drops_no_session(
    spark: SparkSessions, sql: str
) -> None:
    with spark.session(a_job(), Context()) as first:
        pass
    with (
        pytest.raises(PySparkException, match=r"UNAVAILABLE|SESSION_CLOSED"),
        spark.session(a_job(), Context()) as session,
    ):
        session.sql(sql).collect()
    with spark.session(a_job(), Context()) as again:
        assert again is first


@pytest.mark.spark
def test_a_session_that_the_server_dropped_is_made_anew_and_asked_nothing_more(
    spark_server: SparkServer,
) -> None:
    spark = SparkSessions(
        SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    )
    with spark.session(a_job(), Context()) as first:
        first.client.release_session()
    with spark.session(a_job(), Context()) as again:
        assert again is not first
        assert again.range(10).count() == 10
    spark.close()
    assert first.client.is_closed
    assert again.client.is_closed


@pytest.mark.spark
def test_what_goes_under_a_job_broke_off_and_what_was_gone_before_did_not(
    spark_server: SparkServer,
) -> None:
    spark = SparkSessions(
        SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    )

    def lose() -> None:
        with spark.session(a_job(), Context()) as session:
            session.client.release_session()
            session.sql("SELECT 1").collect()

    with pytest.raises(BrokeOff, match=r"Spark does not answer: .*SESSION_CLOSED"):
        lose()
    spark.close()
    with pytest.raises(Unavailable) as caught:
        Probe(SparkSessions(SparkSettings(remote=f"sc://localhost:{ports.choose_free()}"))).run(
            a_job(count=1), Context()
        )
    assert not isinstance(caught.value, BrokeOff)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (SparkConnectGrpcException("x", grpc_status_code=grpc.StatusCode.UNAVAILABLE), True),
        (SparkConnectGrpcException("x", grpc_status_code=grpc.StatusCode.INTERNAL), False),
        (
            PySparkRuntimeError(
                errorClass="RESPONSE_ALREADY_RECEIVED",
                messageParameters={"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"},
            ),
            True,
        ),
        (RuntimeError("UNAVAILABLE"), False),
    ],
)
def test_a_session_is_dropped_by_what_the_connection_says(
    spark: SparkSessions, error: Exception, is_away: bool
) -> None:
    with (
        pytest.raises(Unavailable if is_away else type(error)),
        spark.session(a_job(), Context()) as first,
    ):
        raise error
    with spark.session(a_job(), Context()) as again:
        assert (again is first) != is_away


def test_spark_away_is_one_clear_sentence_and_at_once() -> None:
    address = f"sc://localhost:{ports.choose_free()}"
    with pytest.raises(Unavailable, match=f"Spark at {address} does not answer"):
        Probe(SparkSessions(SparkSettings(remote=address))).run(a_job(count=1), Context())


def test_it_fails_so_often_and_then_succeeds() -> None:
    probe = Probe(SparkSessions(SparkSettings()))
    with pytest.raises(RuntimeError, match="asked to fail"):
        probe.run(a_job(fail_times=2, failures=1), Context())
    assert probe.run(a_job(fail_times=2, failures=2), Context()).result is not None


def test_it_gives_up_for_good_on_request() -> None:
    with pytest.raises(Permanent):
        Probe(SparkSessions(SparkSettings())).run(a_job(give_up=True), Context())


def test_its_sleep_ends_when_the_job_is_taken_away() -> None:
    context = Context()
    context.end("cancelled")
    with pytest.raises(Cancelled):
        Probe(SparkSessions(SparkSettings())).run(a_job(sleep=60), context)

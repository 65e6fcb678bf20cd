"""The Spark Connect session of a process: one, long-lived, made when needed and again if lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kalla import logs
from kalla.errors import BrokeOff, Permanent, Unavailable
from kalla.redaction import scrub
from kalla.settings import Spark as SparkSettings
from kalla.spark import task_failures
from kalla.work.handler import Context
from kalla.work.job import Job

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

_BETWEEN_INTERRUPTS = 0.5
_LOST = (
    "INVALID_HANDLE.SESSION_CHANGED",
    "INVALID_HANDLE.SESSION_CLOSED",
    "INVALID_HANDLE.SESSION_NOT_FOUND",
)

# How Spark has to read SQL, for the sandbox to have read the same: no ${…} filled in before it is
# parsed, no file for a table's name, no pattern for a column's, names in any case, and texts in
# either kind of quotes.
READING = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
}
# Off unless a server has it on, and then texts have no escapes; Spark warns of who sets it at all.
_LEFT_AS_IT_IS = {"spark.sql.parser.escapedStringLiterals": "false"}

# Adaptive execution starts each stage from a thread of its own. One that is still being compiled
# when the query is interrupted is started all the same, with nobody left who could stop it: it
# would hold the cores for as long as it likes.
_CONF: dict[str, bool | float | int | str | None] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",  # a point in time is the same wherever a server stands
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what other readers know
    # Else, where columns have many names, Spark works out what holds of these in any combination: a
    # page of SQL fills its memory, and no cancel reaches it there.
    "spark.sql.constraintPropagation.enabled": "false",
    **READING,
}

_log = logs.get(__name__)

TasksDone = Callable[[int, int], None]
"""Called with how many of a query's tasks are done, and how many there are so far."""

# Progress arrives in the thread that waits for the query, hence in the context of its job.
_listener: ContextVar[TasksDone | None] = ContextVar("listener", default=None)


class SparkSessions:
    """Hands out the session to handlers. pyspark is imported only when work needs it."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._lost: list[SparkSession] = []

    @contextmanager
    def session(
        self, job: Job, context: Context, tasks_done: TasksDone | None = None
    ) -> Iterator[SparkSession]:
        """The session, tagged with this job: taking the job away interrupts its queries."""
        spark = self._connected()
        listening = _listener.set(tasks_done)
        tag = f"kalla-job-{job.job_id}-{job.fence}"
        left = threading.Event()
        context.on_end(lambda: self._interrupt(spark, tag, left))
        spark.addTag(tag)
        try:
            with task_failures.translate_errors():
                yield spark
        except Exception as error:
            context.check()  # an interrupted query fails in many ways; the reason is the cancel
            if spark.client.is_closed or _is_away(error):
                self._forget(spark)
                raise BrokeOff(f"Spark does not answer: {scrub(_first_line(error))}") from error
            raise
        finally:
            left.set()
            spark.removeTag(tag)
            _listener.reset(listening)

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
            lost, self._lost = self._lost, []
        # Not at once when it was lost, for the sake of other jobs' queries; but at its end the
        # process would ask their server for ten minutes.
        for each in lost:
            each.client.close()
        if session is not None:
            session.stop()

    def _connected(self) -> SparkSession:
        known = self._session
        # Without the lock: a server that is frozen would hold up who closes.
        if known is not None and not _answers(known, self._settings.remote):
            self._forget(known)
        with self._lock:
            if self._session is None:
                self._session = connect(self._settings)
                # Declared as a class of its own, but any function will do.
                self._session.registerProgressHandler(_tell)  # type: ignore[arg-type]
            return self._session

    def _interrupt(self, spark: SparkSession, tag: str, left: threading.Event) -> None:
        """Again until the handler has left: its query may be on its way to the server still."""
        while not left.is_set():
            try:
                spark.interruptTag(tag)
            except Exception as error:  # the query then runs to its end, and its result is dropped
                _log.warning("spark was not interrupted", tag=tag, error=_first_line(error))
            left.wait(_BETWEEN_INTERRUPTS)

    def _forget(self, spark: SparkSession) -> None:
        with self._lock:
            if self._session is spark:
                self._session = None
                self._lost.append(spark)


def _tell(
    stages: Iterable[StageInfo] | None,
    inflight_tasks: int,  # noqa: ARG001 -- Spark's signature, called by keyword
    operation_id: str | None,  # noqa: ARG001
    done: bool,  # noqa: ARG001
) -> None:
    """Spark calls this every second or two; what is raised here would fail the query."""
    listener = _listener.get()
    if listener is not None and stages:
        counted = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages]
        listener(sum(done for done, _ in counted), sum(of for _, of in counted))


def connect(settings: SparkSettings) -> SparkSession:
    """Opens a new session with Kalla's SQL functions; the caller must stop it."""
    from pyspark.sql.connect.session import SparkSession

    from kalla.spark import sql_functions

    token = settings.token.get_secret_value()
    remote = settings.remote.rstrip("/")
    url = f"{remote}/;token={token}" if token else remote
    _knock(remote)
    try:
        session = SparkSession.builder.remote(url).config(map=_CONF).create()
        _ = session.version  # asks the server; a query would take it seconds
        sql_functions.install(session)
    except Exception as error:
        raise Unavailable(
            f"Spark at {remote} does not answer: {scrub(_first_line(error))}"
        ) from error
    return session


def require_reading(session: SparkSession) -> None:
    """Raise Permanent if this server reads SQL otherwise: what it does not let a session set, it
    keeps without a word."""
    needed = READING | _LEFT_AS_IT_IS
    wrong = [name for name, value in needed.items() if session.conf.get(name) != value]
    if wrong:
        raise Permanent(
            f"Spark keeps {', '.join(wrong)} on, so SQL of a recipe could mean something else to"
            " it than to the sandbox: set that to false on the server, or allow sessions to"
        )


def _answers(session: SparkSession, remote: str) -> bool:
    """Whether the server still has the session. If it is gone under the job after that, the job may
    have been the reason."""
    _knock(remote.rstrip("/"))
    try:
        session.conf.get("spark.sql.session.timeZone")  # its version, it tells without a session
    except Exception as error:  # whatever it is, a new session will tell
        _log.info("the session with spark is lost", error=scrub(_first_line(error)))
        return False
    return True


def _knock(remote: str) -> None:
    """The client itself would try for minutes before it says that nobody is there."""
    parsed = urlsplit(remote)
    try:
        socket.create_connection((parsed.hostname or "", parsed.port or 15002), 3).close()
    except OSError as error:
        raise Unavailable(f"Spark at {remote} does not answer: {error}") from None


def _is_away(error: Exception) -> bool:
    """By the code of gRPC and the class of Spark: the words of an error may be a user's own."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if isinstance(error, SparkConnectGrpcException):
        code = error.getGrpcStatusCode()
    else:
        code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNAVAILABLE:
        return True
    if not isinstance(error, PySparkException):
        return False
    # Half of an answer had come when the rest was asked for in vain: what for, a parameter tells.
    reasons = (error.getCondition(), (error.getMessageParameters() or {}).get("error_type"))
    return any(condition in _LOST for condition in reasons)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]

"""Places deliveries: in the slot's own process, or over Spark's executors. The same kernel."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kalla import logs
from kalla.errors import KallaError, Unavailable
from kalla.redaction import scrub
from kalla.settings import Spark as SparkSettings
from kalla.sinks.kernel import Delivery, Facts, Kernel, prepare
from kalla.sinks.servers.clickhouse_client import NoAnswer
from kalla.sinks.servers.message_ranges import OffsetsGone
from kalla.sinks.slots.child import Child, ChildEnded, Connections, reported
from kalla.spark.placing import place
from kalla.spark.session import connect

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = logs.get(__name__)

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Result = Facts | KallaError | OffsetsGone

_SPARK_PAUSE_SECONDS = 30.0  # a Spark that does not answer is not tried more often

_opened: tuple[Connections, Kernel] | None = None  # of an executor's Python process


async def place_locally(
    child: Child, deliveries: Sequence[Delivery], deadline: float
) -> list[Result]:
    """Delivers in sequence; the error of a range does not stop the others, that of a server or of
    the process does.
    """
    results: list[Result] = []
    for number, each in enumerate(deliveries, 1):
        try:
            results.append(await child.deliver(each, deadline))
        except (KallaError, OffsetsGone) as error:
            results.append(error)
            if isinstance(error, NoAnswer | ChildEnded):
                not_tried = Unavailable(f"not tried: {error}")
                return results + [not_tried] * (len(deliveries) - number)
    return results


class SparkPlacement:
    """Ranges over executors, each a task. One instance serves all slots of a worker."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._not_before = 0.0

    @property
    def usable(self) -> bool:
        """False for a while after it did not answer."""
        return time.monotonic() >= self._not_before

    async def warm(self, tasks: int) -> None:
        """Connects; the first tasks of a session take seconds, and no intent waits for them."""
        if self._session is None:
            await self._place(_nothing, list(range(max(2, tasks))))

    async def deliver(
        self, connections: Connections, deliveries: Sequence[Delivery], deadline: float
    ) -> list[Result]:
        def kernel(delivery: Delivery) -> Outcome:
            return deliver_in_task(connections, delivery, deadline)

        return [each.result for each in await self._place(kernel, list(deliveries))]

    def close(self) -> None:
        """Blocking. What still runs is interrupted; its deadline would end it, too."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            try:
                session.interruptAll()
                session.stop()
            except Exception as error:  # the server has stopped, and the session with it
                _log.info("spark session not closed", error=str(error)[:200])

    async def _place(self, kernel: Callable[[Task], Answer], tasks: list[Task]) -> list[Answer]:
        try:
            return await asyncio.to_thread(lambda: place(self._connected(), kernel, tasks))
        except Exception as error:
            # whatever Spark raises: the intents define what remains to be done
            self._not_before = time.monotonic() + _SPARK_PAUSE_SECONDS
            await asyncio.to_thread(self.close)
            reason = scrub((str(error) or type(error).__name__).splitlines()[0])
            raise Unavailable(f"Spark cannot place ranges: {reason}") from error

    def _connected(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = connect(self._settings)
            return self._session


@dataclass(frozen=True)
class Outcome:
    """The result of one task, wrapped: a raised error would fail the other tasks."""

    result: Result


def deliver_in_task(connections: Connections, delivery: Delivery, deadline: float) -> Outcome:
    """Runs in an executor. Connections stay open for the next range of this process."""
    global _opened
    if _opened is None or _opened[0] != connections:
        if _opened is not None:
            _opened[1].close()
        kernel = Kernel(connections.kafka, connections.target, connections.dead_letters)
        _opened = (connections, kernel)
    try:
        return Outcome(_opened[1].deliver(delivery, deadline))
    except Exception as error:
        return Outcome(reported(error))


def _nothing(number: int) -> int:
    prepare()  # before an intent waits for it
    return number

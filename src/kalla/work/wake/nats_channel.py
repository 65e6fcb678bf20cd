"""Wake-ups by NATS JetStream: each message is a token for one waiting job, without content.

A token may be lost or duplicated without harm. `claimed` and `settle` keep their number right,
because KEDA scales on it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from kalla import logs
from kalla.settings import Wake as WakeSettings
from kalla.work.service import end
from kalla.work.wake.nats_connection import AWAY, PATIENCE, NatsConnection
from kalla.work.wake.stream import STREAM, TokenStream, consumer, subject

ALARM = "kalla.alarm"

_PULL_SECONDS = (
    4  # how long a worker waits for a token before it asks again: the request may be lost
)
_REDEEM_SECONDS = 0.05  # tokens of claimed jobs are taken out in batches
_REST_SECONDS = 0.25
_LONGEST_REST_SECONDS = 1.0
_CHANCE = 8  # consecutive useless wake-ups that are normal

_log = logs.get(__name__)


class NatsWake:
    """Idle workers ask for a token of each queue; while all are busy, tokens stay in the stream."""

    def __init__(self, settings: WakeSettings, queues: Iterable[str] = ()) -> None:
        self._connection = NatsConnection(settings.nats_url.get_secret_value(), self._prepare)
        self._stream = TokenStream(self._connection, queues)
        self._tokens: Subscription | None = None
        self._inbox = ""
        self._waiters: list[_Waiter] = []
        self._pulls: dict[str, float] = {}  # queue -> when its pull has ended at the latest
        self._rests: dict[str, float] = {}  # queue -> no pull before
        self._held: set[str] = set()  # tokens that woke us and have met no claim yet
        self._fruitless: Counter[str] = Counter()
        self._owed: Counter[str] = Counter()  # tokens to take out for jobs claimed without one
        self._owing = asyncio.Event()
        self._redeemer: asyncio.Task[None] | None = None
        self._stopping = False
        self._alarm = asyncio.Event()
        self._missed = False
        self._refusal: str | None = None

    async def start(self) -> None:
        self._redeemer = asyncio.create_task(self._redeem())
        await self._connection.open()

    async def stop(self) -> None:
        self._stopping = True
        if self._redeemer is not None:
            await end(self._redeemer)
        self._waiters.clear()  # from here on every further token is returned
        with suppress(*AWAY):
            async with asyncio.timeout(PATIENCE):
                await self._withdraw(self._connection.ready())
        await self._connection.close()

    @property
    def error_message(self) -> str | None:
        return self._connection.error_message or self._refusal

    async def nudge(self, waiting: Mapping[str, int]) -> None:
        with self._guarded():
            for queue, count in waiting.items():
                if count > 0:  # earlier useless wake-ups do not count any more
                    self._rests.pop(queue, None)
                    self._held.discard(queue)
                await self._stream.put(queue, count)
            self._stir()

    async def wait(self, queues: Sequence[str], timeout: float) -> set[str]:
        await self._return_unused()
        deadline = time.monotonic() + timeout
        waiter = _Waiter(frozenset(queues))
        self._waiters.append(waiter)
        try:
            while not waiter.nudged and (left := deadline - time.monotonic()) > 0:
                if self._missed:
                    self._missed = False
                    return set(queues)
                pause = await self._pull(waiter.queues)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, pause)):
                        await waiter.stirred.wait()
                waiter.stirred.clear()
        except asyncio.CancelledError:
            for queue in waiter.nudged:
                await self._give_back(queue)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        self._held |= waiter.nudged
        return waiter.nudged

    async def claimed(self, claims: Mapping[str, int]) -> None:
        for queue, count in claims.items():
            if not count:
                continue
            self._fruitless.pop(queue, None)
            owed = count - (queue in self._held)
            self._held.discard(queue)
            if owed:
                self._owed[queue] += owed
                self._owing.set()

    async def alarm(self) -> None:
        with self._guarded():
            client = self._connection.ready()
            await client.publish(ALARM)
            await client.flush(timeout=PATIENCE)

    async def alarmed(self) -> None:
        await self._alarm.wait()
        self._alarm.clear()

    async def depth(self) -> Mapping[str, int]:
        found: Mapping[str, api.ConsumerInfo] = {}
        with self._guarded():
            found = await self._stream.consumers()
        # KEDA adds the two up, too.
        return {
            queue: (info.num_pending or 0) + (info.num_ack_pending or 0)
            for queue, info in found.items()
        }

    async def settle(self, waiting: Mapping[str, int]) -> None:
        with self._guarded():
            found = await self._stream.consumers(*waiting)
            for queue, count in waiting.items():
                info = found[queue]
                pending = info.num_pending or 0
                kept = min(pending, count)
                # The oldest first: tokens held by dead workers, which do not count as waiting.
                if pending > kept or info.num_ack_pending:
                    await self._stream.purge(queue, keep=kept)
                await self._stream.put(queue, count - kept)

    # The line

    async def _prepare(self, client: Client) -> None:
        """Prepares a new connection; also when the server came back without its store."""
        self._pulls.clear()
        self._rests.clear()
        self._inbox = client.new_inbox()
        self._tokens = await client.subscribe(f"{self._inbox}.*", cb=self._receive)
        await client.subscribe(ALARM, cb=self._receive_alarm)
        # Its requests queue up behind the subscriptions; the ping of a flush would overtake them.
        await self._stream.ensure(client)
        if self._connection.lost_before:
            self._missed = True
            self._alarm.set()
        self._stir()

    async def _withdraw(self, client: Client) -> None:
        """Ends the pulls, and returns every token that arrived before their end."""
        await self._redeem_all()
        if self._tokens is not None:
            # drain alone would lose some: its ping overtakes the word that ends the subscription.
            stream = client.jetstream(timeout=PATIENCE)
            await client._send_unsubscribe(self._tokens._id)
            await stream.account_info()
            await self._tokens.drain()  # type: ignore[no-untyped-call]
            await stream.account_info()

    # Tokens that wake us

    async def _pull(self, queues: Iterable[str]) -> float:
        """Ask for a token of each queue; returns in how many seconds to ask again."""
        client, now, again = self._connection.client, time.monotonic(), float(_PULL_SECONDS)
        if client is None:
            return again
        request = json.dumps({"batch": 1, "expires": _PULL_SECONDS * 1_000_000_000}).encode()
        for queue in queues:
            if self._pulls.get(queue, 0) > now:
                again = min(again, self._pulls[queue] - now)
            elif self._rests.get(queue, 0) > now:
                again = min(again, self._rests[queue] - now)
            else:
                self._pulls[queue] = now + _PULL_SECONDS + PATIENCE
                with suppress(*AWAY):
                    await client.publish(
                        f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer(queue)}",
                        request,
                        reply=f"{self._inbox}.{queue}",
                    )
        return again

    async def _receive(self, message: Msg) -> None:
        queue = message.subject.rpartition(".")[2]
        self._pulls.pop(queue, None)
        status = (message.headers or {}).get(api.Header.STATUS)
        if status is None:
            await self._take(queue, message)
        elif status not in (api.StatusCode.NO_MESSAGES, api.StatusCode.REQUEST_TIMEOUT):
            # The consumer is gone, or its server is going: no pull has a chance for the moment.
            self._rests[queue] = time.monotonic() + _REST_SECONDS
            with self._guarded():
                await self._stream.consumers(queue)
        self._stir()

    async def _take(self, queue: str, token: Msg) -> None:
        for waiter in self._waiters:
            if queue in waiter.queues and queue not in waiter.nudged:
                waiter.nudged.add(queue)
                break
        else:
            # This worker became busy after its request: another may be idle.
            await self._give_back(queue)
        # At once: the token does not depend on what happens to the job.
        with suppress(*AWAY):
            await token.ack()

    async def _give_back(self, queue: str) -> None:
        if self._connection.client is not None:
            with suppress(*AWAY):
                await self._connection.client.publish(subject(queue))

    async def _return_unused(self) -> None:
        """Handles tokens that led to no claim.

        A few are normal: another worker was faster, and took more than one job. Many in a row mean
        that nobody can claim these jobs now (for example, their queue is paused): then the tokens
        are returned, because their jobs still wait, and this worker pauses, longer each time.
        """
        for queue in self._held:
            self._fruitless[queue] += 1
            if self._fruitless[queue] > _CHANCE:
                rest = 0.01 * 2 ** min(self._fruitless[queue] - _CHANCE, 10)
                self._rests[queue] = time.monotonic() + min(rest, _LONGEST_REST_SECONDS)
                await self._give_back(queue)
        self._held.clear()

    def _stir(self) -> None:
        for waiter in self._waiters:
            waiter.stirred.set()

    async def _receive_alarm(self, _message: Msg) -> None:
        self._alarm.set()

    # Tokens of jobs that were claimed without one

    async def _redeem(self) -> None:
        while not self._stopping:  # a cancel may be lost inside a request
            await self._owing.wait()
            await asyncio.sleep(_REDEEM_SECONDS)
            self._owing.clear()
            with self._guarded():
                await self._redeem_all()

    async def _redeem_all(self) -> None:
        owed, self._owed = self._owed, Counter()
        if self._connection.client is None:
            return
        for queue, count in owed.items():
            left = await self._stream.take_out(queue, count)
            if left:
                self._owed[queue] += left
                self._owing.set()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """An unreachable or refusing server loses the wake-up, but never fails the caller."""
        try:
            yield
        except TimeoutError as error:
            self._connection.drop(error)
        except AWAY as error:
            # Without a line there is nothing new to tell.
            if self._connection.client is not None and not self._connection.client.is_closed:
                self._refuse(f"NATS refuses wake-ups: {self._connection.describe(error)}")
        else:
            self._refusal = None

    def _refuse(self, sentence: str) -> None:
        if sentence != self._refusal:
            _log.warning("wake-ups are refused", reason=sentence)
        self._refusal = sentence


@dataclass(eq=False)
class _Waiter:
    queues: frozenset[str]
    nudged: set[str] = field(default_factory=set)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

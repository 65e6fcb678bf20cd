"""The stream of tokens in NATS: one message for each waiting job, a consumer for each queue."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from kalla.errors import Unavailable
from kalla.work.wake.nats_connection import PATIENCE, NatsConnection

STREAM = "kalla-jobs"

_ACK_SECONDS = 10  # after this long a token of a dead worker is delivered again
_CHUNK = 1_000


def subject(queue: str) -> str:
    return f"kalla.jobs.{queue}"


def consumer(queue: str) -> str:
    return f"workers-{queue}"


class TokenStream:
    """Adds and removes tokens; creates the stream and its consumers when they are missing."""

    def __init__(self, connection: NatsConnection, queues: Iterable[str]) -> None:
        self._connection = connection
        self._queues = set(queues)

    async def ensure(self, client: Client) -> None:
        stream = client.jetstream(timeout=PATIENCE * 5)
        try:
            info = await stream.stream_info(STREAM)
        except NotFoundError:
            info = await stream.add_stream(
                name=STREAM,
                subjects=[subject("*")],
                retention=api.RetentionPolicy.WORK_QUEUE,
                storage=api.StorageType.FILE,
            )
        if info.config.retention != api.RetentionPolicy.WORK_QUEUE or subject("*") not in (
            info.config.subjects or []
        ):
            raise Unavailable(
                f"the stream {STREAM} exists with other subjects or another retention: "
                "delete it, and Kalla creates it again"
            )
        for queue in sorted(self._queues):
            await stream.add_consumer(
                STREAM,
                name=consumer(queue),
                durable_name=consumer(queue),
                filter_subject=subject(queue),
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=_ACK_SECONDS,
                max_deliver=-1,
            )

    async def consumers(self, *needed: str) -> dict[str, api.ConsumerInfo]:
        """Every queue's consumer, by queue; created again if it was deleted."""
        self._queues.update(needed)
        client = self._connection.ready()
        for ensured in (False, True):
            with suppress(NotFoundError):
                infos = await client.jetstream(timeout=PATIENCE).consumers_info(STREAM)
                found = {info.name.removeprefix(consumer("")): info for info in infos}
                if self._queues <= found.keys():
                    return found
            if not ensured:
                await self.ensure(client)
        raise Unavailable(
            f"the consumers of the stream {STREAM} are deleted as soon as they are created"
        )

    async def put(self, queue: str, count: int) -> None:
        if count <= 0:
            return
        client = self._connection.ready()
        if queue not in self._queues:
            self._queues.add(queue)
            await self.ensure(client)
        while count > 0:
            chunk = min(count, _CHUNK)
            for _ in range(chunk - 1):
                await client.publish(subject(queue))
            # The last one's acknowledgement is enough: the server stores them in order.
            stream = client.jetstream(timeout=PATIENCE)
            try:
                await stream.publish(subject(queue))
            except NoStreamResponseError:
                await self.ensure(client)
                await stream.publish(subject(queue))
                chunk = 1
            count -= chunk

    async def take_out(self, queue: str, count: int) -> int:
        """Remove up to `count` tokens, never more; returns how many are left to remove.

        A purge up to a sequence number costs the same for one and for thousands. Tokens of other
        queues are in between, and other workers do the same: it may take some rounds.
        """
        stream = self._connection.ready().jetstream(timeout=PATIENCE)
        for _ in range(10):
            try:
                oldest = await stream.get_msg(STREAM, seq=1, subject=subject(queue), next=True)
            except NotFoundError:
                return 0
            count -= await self.purge(queue, seq=(oldest.seq or 0) + count)
            if count <= 0:
                return 0
        return count

    async def purge(self, queue: str, **limit: int) -> int:
        """Take tokens out of the stream, the oldest first; returns how many."""
        request = {"filter": subject(queue)} | {key: value for key, value in limit.items() if value}
        message = await self._connection.ready().request(
            f"$JS.API.STREAM.PURGE.{STREAM}", json.dumps(request).encode(), timeout=PATIENCE
        )
        answer = json.loads(message.data)
        if "error" in answer:
            raise APIError.from_error(answer["error"])
        return int(answer["purged"])

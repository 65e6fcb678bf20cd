"""An insert that failed is not marked as delivered, and no work outlives its lease."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from kalla.errors import Lost
from kalla.settings import Sinks
from kalla.sinks.slots.deliveries import Deliveries
from kalla.sinks.slots.seat import Seat
from kalla.work.state.leases import Lease
from tests.integration.sinks.test_control import counted, every_offset_once, until
from tests.integration.sinks.test_lost_answers import Dropping, Quiet
from tests.sinks_kit import Servers, Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly

REFUSED = 4


class Refusing(Dropping):
    """Answers the first inserts with an error and passes on none of them."""

    left: ClassVar[int] = 0

    def passes(self) -> bool:
        cls = type(self)
        with cls.lock:
            if "insert_deduplication_token" in self.path and cls.left:
                cls.left -= 1
                return False
        return True

    def _drops(self) -> bool:
        return False


@pytest.fixture
def refusing_url(sink_servers: Servers) -> Iterator[str]:
    Refusing.upstream = sink_servers.clickhouse.address
    Refusing.left = REFUSED
    with closing(Quiet(("127.0.0.1", 0), Refusing)) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(5)


async def test_a_range_whose_insert_failed_is_delivered_later(
    site: Site, refusing_url: str
) -> None:
    topic = site.servers.create_topic(1)
    config = site.pipeline(topic).clickhouse.model_dump(exclude_unset=True) | {"url": refusing_url}
    pipeline = site.pipeline(topic, batch_rows=10, clickhouse=config)
    await site.apply(pipeline)
    site.servers.produce(topic, [event(number) for number in range(30)])
    await site.start_slots(insert_seconds=1)

    async def all_there() -> bool:
        return Refusing.left == 0 and (await site.ledger(pipeline))[0].next_offset == 30

    async def taken() -> bool:
        return bool(await site.ledger(pipeline))

    await until(taken, "the partition to be taken")
    await until(all_there, "all messages")
    assert await counted(site, pipeline) == 30
    every_offset_once(site, pipeline, 30)


@pytest.mark.parametrize("left", [-1.0, 3.0, 100.0])
async def test_no_insert_is_accepted_after_the_end_of_the_lease(left: float) -> None:
    async def clock() -> float:
        return 1000.0

    lease = Lease("sink/p", 0, 1)
    seat = Seat("me", lease, lambda: time.monotonic() + left)
    parts: Any = {"seat": seat, "settings": Sinks(insert_seconds=10), "child": None}
    deliveries = cast(
        Deliveries, SimpleNamespace(**parts | {"child": SimpleNamespace(clock=clock)})
    )
    if left <= 0:
        with pytest.raises(Lost):
            await Deliveries.deadline(deliveries)
    else:
        assert await Deliveries.deadline(deliveries) <= 1000.0 + min(left, 10)

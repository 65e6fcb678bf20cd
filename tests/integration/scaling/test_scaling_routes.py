"""What the API says of scaling, on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from kalla.scaling import store
from kalla.scaling.decision_service import ScalingDecisions, ScalingGauges
from kalla.scaling.policy import Inputs, Need, Policy, desired
from kalla.work.job import NewJob
from kalla.work.state import presence, queues
from kalla.work.state.presence import Announcement
from tests.servers import PostgresServer
from tests.web_kit import PAGE, Site, open_site


@pytest.fixture(scope="module")
def site_database(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = postgres_server.create(migrated_template)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop(name)


@pytest_asyncio.fixture
async def site(site_database: str) -> AsyncIterator[Site]:
    async with open_site(site_database) as opened:
        await opened.execute("DELETE FROM kalla.scaling_needs")
        await opened.execute("DELETE FROM kalla.scaling_decisions")
        yield opened


def a_worker(name: str, active: int = 0, draining: bool = False) -> Announcement:
    return Announcement(name, "host", 1, "127.0.0.1:1", ["exec"], 4, active, "0", draining)


async def test_autoscale_tells_every_role_and_counts_running_work(site: Site) -> None:
    await site.submit(*(NewJob("probe") for _ in range(15)))
    await site.claim(2)
    async with site.database.transaction() as connection:
        await presence.announce(connection, a_worker("one", active=2))
        await presence.announce(connection, a_worker("two"))
        await presence.announce(connection, a_worker("leaving", draining=True))
    async with site.client("viewer") as client:
        answer = (await client.get("/autoscale")).json()["roles"]
    assert set(answer) == {"stage", "exec", "refresh", "compact", "sinks"}
    found = answer["exec"]
    assert (found["waiting"], found["running"], found["demand"]) == (13, 2, 15)
    assert (found["current"], found["busy"], found["desired"]) == (2, 1, 4)
    assert found["saturation"] == 0.25
    assert answer["stage"]["desired"] == 0


async def test_gauges_say_what_the_endpoint_says_until_the_decision_is_old(site: Site) -> None:
    seconds = [100.0]
    gauges = ScalingGauges(lambda: seconds[0])
    registry = CollectorRegistry()
    registry.register(gauges)
    await site.submit(*(NewJob("probe") for _ in range(9)))
    await site.claim(2)
    async with site.database.transaction() as connection:
        await presence.announce(connection, a_worker("one", active=2))
    await ScalingDecisions(site.settings, site.database, gauges).tick()
    async with site.client("viewer") as client:
        answer = (await client.get("/autoscale")).json()["roles"]["exec"]
    names = {
        "current": "current_workers",
        "desired": "desired_workers",
        "busy": "busy_workers",
    }
    for key in ("waiting", "running", "demand", "saturation", "current", "desired", "busy"):
        name = f"kalla_scaling_{names.get(key, key)}"
        assert registry.get_sample_value(name, {"role": "exec"}) == answer[key], name
    waited = registry.get_sample_value("kalla_scaling_oldest_wait_seconds", {"role": "exec"})
    assert waited is not None
    assert 0 < waited <= answer["oldest_wait_seconds"]
    seconds[0] += 61
    # Postgres is away: an old demand would keep workers for nothing, a zero would end busy ones.
    assert registry.get_sample_value("kalla_scaling_demand", {"role": "exec"}) is None


async def test_autoscale_needs_a_token(site: Site) -> None:
    async with site.client() as client:
        assert (await client.get("/autoscale")).status_code == 401


async def test_decisions_are_recorded_once_and_replay_to_the_same_decision(site: Site) -> None:
    service = ScalingDecisions(site.settings, site.database, ScalingGauges())
    await site.submit(*(NewJob("probe") for _ in range(100)))
    await service.tick()
    await service.tick()  # at once: another process looked just now
    await site.execute("DELETE FROM kalla.jobs")
    await site.execute("UPDATE kalla.scaling_needs SET at = at - interval '20 seconds'")
    async with site.database.transaction() as connection:
        for number in range(27):
            await presence.announce(connection, a_worker(f"w{number}"))
    await service.tick()
    async with site.database.transaction() as connection:
        found = await store.decisions(connection, role="exec")
        cursor = await connection.execute(
            "SELECT extract(epoch FROM at)::double precision AS at, workers"
            " FROM kalla.scaling_needs WHERE role = 'exec' ORDER BY at"
        )
        needs = [Need(**row) for row in await cursor.fetchall()]
    assert [(each.current, each.desired, each.held_by) for each in found] == [
        (27, 27, "stabilisation"),
        (0, 27, None),
    ]
    newest = Inputs(**found[0].inputs)
    earlier = [need for need in needs if need.at < newest.at]
    decision = desired(newest, Policy(**found[0].policy), earlier)
    assert decision.recent_need == found[0].recent_need == 27
    for each in found:
        again = each.replayed()
        assert (again.desired, again.limit, again.reason) == (
            each.desired,
            each.held_by,
            each.reason,
        )


async def test_a_clock_that_stepped_back_does_not_stop_the_records(site: Site) -> None:
    service = ScalingDecisions(site.settings, site.database, ScalingGauges())
    await service.tick()
    await site.execute("UPDATE kalla.scaling_needs SET at = at + interval '1 hour'")
    await service.tick()
    found = await site.one("SELECT count(*) AS n FROM kalla.scaling_needs WHERE role = 'exec'")
    assert found["n"] == 2


async def test_what_a_machine_that_is_gone_recorded_is_removed_after_a_week(site: Site) -> None:
    await ScalingDecisions(site.settings, site.database, ScalingGauges()).tick()
    await site.execute("UPDATE kalla.scaling_needs SET pool = 'gone', at = at - interval '8 days'")
    await ScalingDecisions(site.settings, site.database, ScalingGauges()).tick()
    found = await site.one("SELECT count(*) AS n FROM kalla.scaling_needs WHERE pool = 'gone'")
    assert found["n"] == 0


async def test_slots_of_started_pipelines_are_demand_for_workers_that_take_sinks(
    site: Site,
) -> None:
    await site.execute(
        "INSERT INTO kalla.pipelines (pipeline, options, guarantee, created_by, changed_by)"
        " VALUES ('orders', '{}', '', 'me', 'me'), ('idle', '{}', '', 'me', 'me')"
    )
    await site.execute(
        "INSERT INTO kalla.pipeline_state (pipeline, desired, replicas)"
        " VALUES ('orders', 'started', 9), ('idle', 'stopped', 5)"
    )
    await site.execute(
        "INSERT INTO kalla.leases (resource, slot, epoch, holder, until)"
        " VALUES ('sink/orders', 0, 1, 'one', kalla.clock() + interval '1 minute'),"
        " ('sink/orders', 1, 1, 'one', kalla.clock() - interval '1 minute'),"
        " ('sink/orders', 9, 1, 'one', kalla.clock() + interval '1 minute')"
    )
    try:
        async with site.client("viewer") as client:
            found = (await client.get("/autoscale")).json()["roles"]["sinks"]
            async with site.database.transaction() as connection:
                await queues.pause(connection, "sinks", by="somebody")
            paused = (await client.get("/autoscale")).json()["roles"]["sinks"]
    finally:
        await site.execute("DELETE FROM kalla.pipelines")
        await site.execute("DELETE FROM kalla.leases")
    # Nine slots, eight a worker: two workers.
    assert (found["waiting"], found["running"], found["desired"]) == (8, 1, 2)
    # Slots are not jobs of the queue: they are carried while it is paused.
    assert (paused["waiting"], paused["demand"], paused["desired"]) == (8, 9, 2)


async def test_a_paused_queue_is_not_scaled_up_for(site: Site) -> None:
    await site.submit(*(NewJob("probe") for _ in range(9)))
    async with site.database.transaction() as connection:
        await queues.pause(connection, "exec", by="somebody")
    async with site.client("viewer") as client:
        found = (await client.get("/autoscale")).json()["roles"]["exec"]
    # KEDA scales by the demand.
    assert (found["waiting"], found["demand"], found["desired"]) == (9, 0, 0)
    assert "paused" in found["reason"]


async def test_the_page_shows_roles_and_decisions_as_text(site: Site) -> None:
    await site.submit(*(NewJob("probe") for _ in range(9)))
    await ScalingDecisions(site.settings, site.database, ScalingGauges()).tick()
    async with site.client("viewer") as client:
        page = await client.get("/scaling", headers=PAGE)
        decisions = (await client.get("/api/scaling/decisions", params={"role": "exec"})).json()
        shown = await client.get(f"/api/scaling/decisions/{decisions[0]['decision_id']}")
        missing = await client.get("/api/scaling/decisions/999999")
    assert page.status_code == 200
    assert "9 waiting and 0 running need 3 workers" in page.text
    assert "exec in the last hour: demand up to 9, workers up to 3" in page.text
    # What the decision was made from, and by which policy.
    assert "<dt>oldest_wait_seconds</dt>" in page.text
    assert "<dt>scale_down_step</dt><dd>4</dd>" in page.text
    assert shown.json()["inputs"]["waiting"] == 9
    assert missing.status_code == 404

"""Every known flaw, put back, turns some test red. A mutant that survives fails the suite."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from tests.mutations.mutant import BROKEN, Bench, Mutant, Verdict
from tests.mutations.of_absences import ABSENCES
from tests.mutations.of_attacks import ATTACKS
from tests.mutations.of_claims import CLAIMS
from tests.mutations.of_input import INPUT
from tests.mutations.of_jobs import JOBS
from tests.mutations.of_leases import LEASES
from tests.mutations.of_runs import RUNS
from tests.mutations.of_scaling import SCALING
from tests.mutations.of_sinks import ROOM, SINKS
from tests.mutations.of_worker import WORKER
from tests.servers import PostgresServer
from tests.sinks_kit import Servers

MUTANTS = (*CLAIMS, *JOBS, *ABSENCES, *RUNS, *LEASES, *INPUT, *WORKER, *SINKS, *SCALING, *ATTACKS)
# One for each trap with the other tests; all of them take minutes and have a target of their own.
JUDGED = (
    MUTANTS
    if os.environ.get("KALLA_TEST_MUTANTS") == "all"
    else tuple({mutant.trap: mutant for mutant in reversed(MUTANTS) if mutant.trap}.values())
)
AT_ONCE = 2
AS_IT_IS = "test_without_a_flaw_the_same_tests_are_green"
TRAPS = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17}

Verdicts = dict[Mutant | None, Future[Verdict]]


@pytest.fixture(scope="module")
def benches(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SimpleQueue[Bench]]:
    free: SimpleQueue[Bench] = SimpleQueue()
    if any(test.startswith(ROOM) for mutant in JUDGED for test in mutant.tests):
        servers: Servers = request.getfixturevalue("sink_servers")
        os.environ["KALLA_TEST_SINKS"] = servers.given  # the zygotes and their tests inherit it
    made = [
        Bench(tmp_path_factory.mktemp("mutant"), postgres_server.admin_url) for _ in range(AT_ONCE)
    ]
    for bench in made:
        free.put(bench)
    yield free
    for bench in made:
        bench.close()
    os.environ.pop("KALLA_TEST_SINKS", None)


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, benches: SimpleQueue[Bench]) -> Iterator[Verdicts]:
    """The verdicts that were asked for, two at a time; None is the source as it is."""
    names = {item.name for item in request.session.items}
    asked = [mutant for mutant in JUDGED if f"test_some_test_notices[{mutant}]" in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            mutant: pool.submit(_judge, benches, mutant)
            for mutant in [*([None] if AS_IT_IS in names else []), *asked]
        }
        pool.shutdown(cancel_futures=True)


def test_every_mutant_fits_the_source_and_names_tests_that_exist() -> None:
    """Also those that only `make mutants` judges: a rename must not lose them."""
    for mutant in MUTANTS:
        assert mutant.misfits() == [], mutant.flaw


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", JUDGED, ids=str)
def test_some_test_notices(verdicts: Verdicts, mutant: Mutant) -> None:
    verdict = verdicts[mutant].result()
    assert verdict.code == 1, f"it survived, or did not run:\n{verdict.output[-3000:]}"
    broken = BROKEN.search(verdict.output)
    assert broken is None, f"it is broken, not wrong:\n{verdict.output[-3000:]}"
    assert re.search(r"^\d+ failed", verdict.output, re.MULTILINE), verdict.output[-3000:]


@pytest.mark.timeout(600)
def test_without_a_flaw_the_same_tests_are_green(verdicts: Verdicts) -> None:
    verdict = verdicts[None].result()
    assert verdict.code == 0, verdict.output[-3000:]


def test_every_trap_has_a_mutant() -> None:
    assert {mutant.trap for mutant in MUTANTS if mutant.trap} >= TRAPS
    assert len({mutant.flaw for mutant in MUTANTS}) == len(MUTANTS)


def _judge(free: SimpleQueue[Bench], mutant: Mutant | None) -> Verdict:
    all_tests = tuple(dict.fromkeys(test for each in JUDGED for test in each.tests))
    bench = free.get()
    try:
        return bench.run(mutant, mutant.tests if mutant else all_tests)
    finally:
        free.put(bench)

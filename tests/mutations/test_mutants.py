"""Every known flaw, put back, turns some test red. A mutant that survives fails the suite."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.mutations.mutant import BROKEN, Mutant, Verdict, run
from tests.mutations.of_input import INPUT
from tests.mutations.of_jobs import JOBS
from tests.mutations.of_leases import LEASES
from tests.mutations.of_runs import RUNS
from tests.mutations.of_worker import WORKER
from tests.servers import PostgresServer

MUTANTS = (*JOBS, *RUNS, *LEASES, *INPUT, *WORKER)
TRAPS = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 17}
AT_ONCE = 2

Verdicts = dict[str, Future[Verdict]]


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Verdicts]:
    """The verdicts on the mutants that were asked for, two at a time, in the order of the table."""
    names = {item.name for item in request.session.items}
    asked = [mutant for mutant in MUTANTS if f"test_some_test_notices[{mutant}]" in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            mutant.flaw: pool.submit(
                run,
                mutant,
                mutant.tests,
                tmp_path_factory.mktemp("mutant"),
                postgres_server.admin_url,
            )
            for mutant in asked
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_some_test_notices(verdicts: Verdicts, mutant: Mutant) -> None:
    verdict = verdicts[mutant.flaw].result()
    assert verdict.code == 1, f"it survived, or did not run:\n{verdict.output[-3000:]}"
    broken = BROKEN.search(verdict.output)
    assert broken is None, f"it is broken, not wrong:\n{verdict.output[-3000:]}"
    assert " failed" in verdict.output.splitlines()[-1], verdict.output[-3000:]


@pytest.mark.timeout(600)
def test_without_a_flaw_the_same_tests_are_green(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tests = tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests))
    verdict = run(None, tests, tmp_path_factory.mktemp("as-it-is"), postgres_server.admin_url)
    assert verdict.code == 0, verdict.output[-3000:]


def test_every_trap_has_a_mutant() -> None:
    assert {mutant.trap for mutant in MUTANTS if mutant.trap} >= TRAPS
    assert len({mutant.flaw for mutant in MUTANTS}) == len(MUTANTS)

"""An error of a range costs another try of the range, wherever it was placed."""

from __future__ import annotations

import pickle

import pytest

from kalla.errors import KallaError, Unavailable
from kalla.sinks.kernel import Facts
from kalla.sinks.servers.clickhouse_client import NoAnswer, Target
from kalla.sinks.servers.message_ranges import OffsetsGone
from kalla.sinks.slots import placement
from kalla.sinks.slots.child import ChildEnded, Connections

CONNECTIONS = Connections(
    {"sasl.password": "hidden"}, Target("http://x", "d", "t", "u", "hidden"), "t_dead_letters"
)
FACTS = Facts(1, 0, 0, 0, 9, 0, None, 0.1)


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def deliver(self, _delivery: object, _deadline: float) -> None:
        raise self.error


@pytest.mark.parametrize("error", [OverflowError("too large"), Unavailable("no"), OffsetsGone("x")])
def test_whatever_a_range_raises_is_its_result(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that slots do not know would close the slot, and move the partitions of the group."""
    monkeypatch.setattr(placement, "_opened", (CONNECTIONS, Failing(error)))
    outcome = placement.deliver_in_task(CONNECTIONS, None, 0)  # type: ignore[arg-type]
    result = pickle.loads(pickle.dumps(outcome)).result  # noqa: S301
    assert isinstance(result, KallaError | OffsetsGone)
    assert str(error) in str(result)


class Answering:
    """A child process whose answers are given."""

    def __init__(self, answers: list[Exception | Facts]) -> None:
        self.answers = answers

    async def deliver(self, _delivery: object, _deadline: float) -> Facts:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("error", "left"), [(KallaError("a value"), 0), (NoAnswer("away"), 1), (ChildEnded("x"), 1)]
)
async def test_only_an_error_of_a_server_or_process_stops_the_ranges_after_it(
    error: Exception, left: int
) -> None:
    child = Answering([FACTS, error, FACTS])
    results = await placement.place_locally(child, [None] * 3, 0)  # type: ignore[arg-type, list-item]
    assert results[:2] == [FACTS, error]
    assert len(child.answers) == left
    assert isinstance(results[2], Unavailable if left else Facts)


def test_connections_do_not_show_their_passwords() -> None:
    assert "hidden" not in repr(CONNECTIONS)

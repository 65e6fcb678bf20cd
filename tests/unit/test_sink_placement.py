"""An error of a range costs another try of the range, wherever it was placed."""

from __future__ import annotations

import pickle

import pytest

from kalla.errors import KallaError, Unavailable
from kalla.sinks.servers.clickhouse_client import Target
from kalla.sinks.servers.message_ranges import OffsetsGone
from kalla.sinks.slots import placement
from kalla.sinks.slots.child import Connections

CONNECTIONS = Connections(
    {"sasl.password": "hidden"}, Target("http://x", "d", "t", "u", "hidden"), "t_dead_letters"
)


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


def test_connections_do_not_show_their_passwords() -> None:
    assert "hidden" not in repr(CONNECTIONS)

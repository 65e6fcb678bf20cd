"""The same work on many things, in several threads."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError

import pytest

from kalla.threads import spread


def test_results_come_in_the_order_of_what_was_given() -> None:
    assert list(spread(lambda number: number * 2, range(100), 3)) == list(range(0, 200, 2))
    assert list(spread(str, [], 3)) == []


def test_as_many_are_at_work_at_once_as_there_are_threads() -> None:
    together = Barrier(3, timeout=30)
    assert len(list(spread(lambda _: together.wait(), range(3), 3))) == 3


def test_only_so_much_is_taken_ahead_as_keeps_the_threads_busy() -> None:
    given = iter(range(1000))
    results = spread(str, given, 2)
    assert next(results) == "0"
    assert next(given) <= 6


def test_an_error_reaches_the_caller_and_ends_the_work() -> None:
    begun: list[int] = []

    def fail(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise BrokenBarrierError("three")
        return number

    with pytest.raises(BrokenBarrierError, match="three"):
        list(spread(fail, range(1000), 2))
    assert max(begun) < 20

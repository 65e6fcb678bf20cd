"""The disk budget of a query worker, under any order of artifacts and segments."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kalla.query.worker.disk_budget import EVICTION_ORDER, DiskBudget, DiskFull

SIZES = st.integers(1, 400)


def test_what_does_not_fit_at_all_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(DiskFull, match=r"query_worker\.disk_bytes"):
        DiskBudget(1000).admit_artifact("a", 901)


def test_segments_leave_room_for_artifacts() -> None:
    budget = DiskBudget(1000)
    for number in range(20):
        budget.admit_segment(f"s{number}", 100)

    assert budget.cache_bytes <= 750


def test_an_unacknowledged_artifact_goes_only_for_another_artifact() -> None:
    budget = DiskBudget(1000)
    budget.admit_artifact("old", 500)
    budget.admit_artifact("new", 300)

    assert budget.admit_segment("s", 200) is None
    assert budget.admit_artifact("newest", 300) == ["old"]


class AnyOrder(RuleBasedStateMachine):
    """Drives a budget and keeps the files as a spool would."""

    @initialize()
    def begin(self) -> None:
        self.budget = DiskBudget(1000)
        self.files: dict[str, int] = {}
        self.made = 0

    def _take(self, name: str, size: int, dropped: list[str], kinds: dict[str, str]) -> None:
        for old in dropped:
            del self.files[old]
        ranks = [EVICTION_ORDER.index(kinds[old]) for old in dropped]
        assert ranks == sorted(ranks)
        self.files[name] = size

    def _kinds(self) -> dict[str, str]:
        return {name: entry.state for name, entry in self.budget.entries.items()}

    @rule(size=SIZES)
    def artifact(self, size: int) -> None:
        self.made += 1
        kinds = self._kinds()
        self._take(f"a{self.made}", size, self.budget.admit_artifact(f"a{self.made}", size), kinds)

    @rule(size=SIZES)
    def segment(self, size: int) -> None:
        self.made += 1
        kinds = self._kinds()
        dropped = self.budget.admit_segment(f"s{self.made}", size)
        if dropped is not None:
            assert "unacknowledged" not in {kinds[old] for old in dropped}
            self._take(f"s{self.made}", size, dropped, kinds)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        artifacts = [name for name in self.files if name.startswith("a")]
        if artifacts:
            self.budget.acknowledge(data.draw(st.sampled_from(artifacts)))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.files:
            name = data.draw(st.sampled_from(sorted(self.files)))
            self.budget.remove(name)
            del self.files[name]

    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        if self.files:
            self.budget.use(data.draw(st.sampled_from(sorted(self.files))))

    @invariant()
    def the_files_are_those_of_the_budget_and_fit(self) -> None:
        assert {name: entry.size for name, entry in self.budget.entries.items()} == self.files
        assert self.budget.used == sum(self.files.values())
        assert self.budget.used <= self.budget.high
        assert self.budget.cache_bytes <= self.budget.segment_limit


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase

"""The bars of a run's result: which sums may be drawn, and which rows a part opens."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

from kalla.reconcile.evidence.reading.run_report import Figures, Report, percent
from kalla.reconcile.kernel import STATES
from kalla.reconcile.recipe.model import SIDES
from kalla.reconcile.runs.store import Progress, RunDetail
from kalla.web.layout import Layout

NOW = datetime(2026, 5, 31, 12, tzinfo=UTC)


def bars(**left: Figures) -> dict[str, list[tuple[str, float, str]]]:
    """By bar: what each part says, its width and its address."""
    states = {state: left.get(state, Figures()) for state in STATES}
    none = dict.fromkeys(STATES, Figures())
    report = Report(
        name="x", recipe="x", recipe_hash="", sources={}, names={"left": "ledger"}, started_at=NOW,
        finished_at=NOW, seconds=1, match_rate=0.5, exceptions=1, rules=[], largest_exceptions=[],
        troubles=[], evidence="/e", sides={"left": states, "right": none},
    )  # fmt: skip
    run = RunDetail(
        run_id=7, name="x", recipe_id="x", recipe_version=1, recipe_hash="", sources={},
        submitted_by="ann", created_at=NOW, status="completed", error=None, finished_at=NOW,
        match_rate=0.5, exceptions=1, progress=Progress("matching", (), None, None, None, None, 1),
        report=report,
    )  # fmt: skip
    html = Layout(["kalla.reconcile"], ()).fragment(
        "run_report.html", now=NOW, view=SimpleNamespace(may_change=True), run=run, sources={},
        names={"left": "ledger", "right": "bank"}, sides=SIDES, states=STATES, percent=percent,
    )  # fmt: skip
    part = re.compile(r'<a href="([^"]*)" aria-label="([^"]*)">\s*<rect[^>]* width="([\d.]+)"')
    found = re.findall(r'aria-label="([^"]*) by status">(.*?)</svg>', html, re.DOTALL)
    return {
        name: [(said, float(width), href) for href, said, width in part.findall(parts)]
        for name, parts in found
    }


def test_sums_of_several_currencies_are_not_added_up_in_a_bar() -> None:
    matched = Figures(rows=2, amount=Decimal(10), currencies={"EUR": Decimal(10)})
    unmatched = Figures(rows=1, amount=Decimal(5), currencies={"USD": Decimal(5)})
    assert bars(matched=matched, unmatched=unmatched).keys() == {"ledger rows"}


def test_sums_are_shown_with_their_sign_and_drawn_if_all_have_the_same() -> None:
    credit, debit = Decimal("-30.50"), Decimal("10")
    paid, open_ = Figures(rows=1, amount=credit), Figures(rows=1, amount=Decimal("-30.50"))
    assert bars(matched=paid, unmatched=open_)["ledger net sum"] == [
        ("matched: -30.50", 500.0, "?part=matched#evidence"),
        ("unmatched: -30.50", 500.0, "?part=unmatched_left#evidence"),
    ]
    mixed = bars(matched=paid, unmatched=Figures(rows=1, amount=debit))
    assert mixed.keys() == {"ledger rows"}


def test_the_part_of_suggestions_opens_suggestions() -> None:
    ((said, _, address),) = bars(suggested=Figures(rows=3))["ledger rows"]
    assert said == "suggested: 3 rows"
    assert address == "?part=matched&amp;filter=status:eq:suggested#evidence"

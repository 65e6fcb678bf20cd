"""How the report of a reconciliation looks in a terminal."""

from __future__ import annotations

from decimal import Decimal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kalla.reconcile import report
from kalla.reconcile.kernel import STATES, Tally
from kalla.reconcile.model import SIDES
from kalla.reconcile.run import Run

_WIDTH = 120


def print_report(run: Run) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)  # a figure cut short is no figure
    rate = report.match_rate(run)
    console.print(f"\n[bold]{escape(run.plan.recipe)}[/]: {rate:.2%} of all rows matched\n")
    console.print(_figures(run))
    _print_trouble(console, run)
    found = report.largest(run)
    if found:
        console.print("\nThe largest exceptions:")
        for each in found:
            amount = "" if each.amount is None else f" {_money(each.amount)}"
            console.print(
                f"  {each.side} {each.record_key}{amount}: {each.sentence()}", markup=False
            )
    console.print(f"\nEvidence for every row: {run.folder}", markup=False)
    console.print(f"  {run.seconds:.1f} s", markup=False)


def _figures(run: Run) -> Table:
    """By rule, then by what became of the rows."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for column in ("rule", ""):
        table.add_column(column, no_wrap=True)
    for column in ("matches", "left rows", "left sum", "right rows", "right sum", "ambiguous"):
        table.add_column(column, justify="right", no_wrap=True)
    for rule in run.facts.rules:
        table.add_row(
            escape(rule.name),
            rule.cardinality,
            f"{rule.matches:,}",
            *_cells(rule.left),
            *_cells(rule.right),
            f"{rule.ambiguous_left + rule.ambiguous_right:,}",
        )
    table.add_row()
    for state in STATES:
        tallies = [run.facts.sides[side].states[state] for side in SIDES]
        if any(tally.rows for tally in tallies) or state == "matched":
            cells = (cell for tally in tallies for cell in _cells(tally))
            table.add_row(state, "", "", *cells)
    return table


def _print_trouble(console: Console, run: Run) -> None:
    """What was odd about the sources, in a line each."""
    for side in SIDES:
        loaded = run.facts.sides[side].loaded
        if loaded.doubled_keys:
            console.print(
                f"  {side}: {loaded.doubled_keys:,} rows have a key that is not unique, or null"
            )
        for column, kind, rows, examples in loaded.unreadable:
            said = ", ".join(map(repr, examples))
            console.print(
                f"  {side}: {rows:,} values of {column} are no {kind}, such as {said}", markup=False
            )


def _cells(tally: Tally) -> tuple[str, str]:
    return f"{tally.rows:,}", "" if tally.amount is None else _money(tally.amount)


def _money(amount: Decimal) -> str:
    """With the places it has, but at least two if it has any."""
    whole, point, places = f"{amount:,f}".partition(".")
    return f"{whole}.{places.rstrip('0'):0<2}" if point else whole

"""How the report of a reconciliation looks in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kalla.reconcile.evidence.reading.run_report import Figures, Report, percent
from kalla.reconcile.recipe.model import SIDES
from kalla.web.text_format import money, shortened, visible

_WIDEST = 10_000
_NAME = 60  # signs that are shown of a rule's


@contextmanager
def printing() -> Iterator[None]:
    """Exit code 1 says that exceptions were found: what cannot be printed is exit code 2."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough: that is nothing to complain about
        _print_no_more()
    except (OSError, ValueError) as error:
        _print_no_more()
        typer.echo(f"The report cannot be printed: {error}", err=True)
        raise typer.Exit(2) from None


def _print_no_more() -> None:
    """Or the interpreter tries once more as it ends, and has an exit code of its own for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def print_report(report: Report, see_more: str) -> None:
    """The report, and below it the command that shows the evidence."""
    console = Console(highlight=False, soft_wrap=True)
    figures = _figures(report)
    # A figure cut short is not a figure: what a terminal is too narrow for, it folds.
    room = console.options.update_width(_WIDEST)
    console.width = max(console.width, console.measure(figures, options=room).maximum)
    name, rate = escape(visible(report.name)), percent(report.match_rate)
    console.print(f"\n[bold]{name}[/]: {rate} % of all rows matched\n")
    console.print(figures)
    for trouble in report.troubles:
        console.print(f"  {visible(trouble)}", markup=False)
    if report.largest_exceptions:
        console.print("\nThe largest exceptions:")
        for each in report.largest_exceptions:
            amount = "" if each.amount is None else f" {money(each.amount)}"
            amount += f" {each.currency}" if each.currency else ""
            line = (
                f"{report.name_of(each.side)} {shortened(each.record_key)}{amount}: {each.reason}"
            )
            console.print(f"  {visible(line)}", markup=False)
    console.print(f"\nEvidence for every row: {visible(report.evidence)}", markup=False)
    console.print(f"To see it in the pages: {visible(see_more)}", markup=False)
    console.print(f"  {report.seconds:.1f} s", markup=False)


def _figures(report: Report) -> Table:
    """By rule, then by row status."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for column in ("rule", ""):
        table.add_column(column, no_wrap=True)
    sides = [
        f"{escape(visible(report.name_of(side)))} {of}" for side in SIDES for of in ("rows", "sum")
    ]
    for column in ("matches", *sides, "ambiguous"):
        table.add_column(column, justify="right", no_wrap=True)
    for rule in report.rules:
        table.add_row(
            escape(visible(shortened(rule.name, _NAME))),
            rule.cardinality,
            f"{rule.matches:,}",
            *_cells(rule.left),
            *_cells(rule.right),
            f"{rule.ambiguous:,}",
        )
    table.add_row()
    for state in report.sides["left"]:
        figures = [report.sides[side][state] for side in SIDES]
        if any(each.rows for each in figures) or state == "matched":
            cells = (cell for each in figures for cell in _cells(each))
            table.add_row(state, "", "", *cells)
    return table


def _cells(figures: Figures) -> tuple[str, str]:
    if figures.currencies:
        each = (f"{money(amount)} {visible(name)}" for name, amount in figures.currencies.items())
        return f"{figures.rows:,}", escape("\n".join(each))
    return f"{figures.rows:,}", "" if figures.amount is None else money(figures.amount)

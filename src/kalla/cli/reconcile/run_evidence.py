"""`kalla runs export` and `kalla runs diff`: a run's evidence, by its number or by its folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kalla import settings
from kalla.cli.client import Client, Style, print_json
from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.reconcile.evidence.reading import evidence_pages
from kalla.reconcile.evidence.reading.evidence_export import FORMATS, Format
from kalla.reconcile.evidence.reading.evidence_export import export as write
from kalla.reconcile.evidence.reading.evidence_filters import Filter, Order
from kalla.reconcile.evidence.reading.run_comparison import CHANGES, WORDS, Difference, compare
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.recipe.model import SIDES
from kalla.storage import Storage
from kalla.web.text_format import money, visible

_RUN = "A run's number, or the folder of its evidence."
_PATIENCE_SECONDS = 900  # an answer over millions of rows is made before its first byte comes


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_RUN)],
    part: Annotated[str, typer.Argument(metavar="PART", help=f"{', '.join(DATASETS)}.")],
    style: Annotated[
        str | None,
        typer.Option("--format", help="csv, parquet or xlsx; else as the file is called, or csv."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; - is stdout.")] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", metavar="COLUMN:OP:VALUE", help="Repeatable.")
    ] = None,
    sort: Annotated[str, typer.Option(help="Columns, with commas; -column descends.")] = "",
    bom: Annotated[bool, typer.Option("--bom", help="CSV: begin with a mark of UTF-8.")] = False,
) -> None:
    """Write a part of a run's evidence to a file, filtered and sorted."""
    wanted = _format(style, output)
    if part not in DATASETS:
        raise InvalidInput(Problem("PART", f"{part!r} is not one of {', '.join(DATASETS)}"))
    name = f"run-{run}-{part}.{wanted}" if run.isdigit() else f"{part}.{wanted}"

    def fetch(file: Path) -> None:
        if run.isdigit():
            query = {"format": wanted, "filter": filters, "sort": sort or None, "bom": bom or None}
            with Client(_PATIENCE_SECONDS) as client:
                client.download(f"/api/runs/{run}/evidence/{part}", file, **query)
            return
        orders = Order.parse_all(sort)
        rows = evidence_pages.Query(tuple(map(Filter.parse, filters or [])), orders)
        write(run.rstrip("/"), part, rows, wanted, file, _storage(), bom=bom)

    target = output or Path(name)
    with _written(target):
        if target == Path("-") or _is_stream(target):
            _pour(target, fetch)
            return
        _replace(target, name, fetch)
        size = target.stat().st_size
    typer.echo(f"{visible(str(target))} has {size:,} bytes.")


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=_RUN)],
    b: Annotated[str, typer.Argument(metavar="B", help=_RUN)],
    examples: Annotated[int, typer.Option(min=0, max=1000, help="Rows of each change.")] = 5,
    style: Style = "text",
) -> None:
    """Compare two runs, row by row."""
    if a.isdigit() != b.isdigit():
        raise InvalidInput(Problem("A and B", "must both be numbers of runs, or both be folders"))
    if a.isdigit():
        with Client(_PATIENCE_SECONDS) as client:
            document: dict[str, Any] = client.get(f"/api/runs/{a}/diff/{b}", examples=examples)
        found = Difference.model_validate(document)
    else:
        found = compare(a.rstrip("/"), b.rstrip("/"), _storage(), examples)
    if style == "json":
        print_json(found.model_dump(mode="json"))
    else:
        _print(found)


def _is_stream(target: Path) -> bool:
    """A device or a pipe: it is written to, never replaced."""
    return target.exists() and not (target.is_file() or target.is_dir())


def _pour(target: Path, fetch: Callable[[Path], None]) -> None:
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="kalla-export-"))
        made = Path(folder) / "rows"
        fetch(made)
        is_stdout = target == Path("-")
        stream = sys.stdout.buffer if is_stdout else held.enter_context(target.open("wb"))
        shutil.copyfileobj(held.enter_context(made.open("rb")), stream)
        stream.flush()


def _replace(target: Path, name: str, fetch: Callable[[Path], None]) -> None:
    """The file is there whole or not at all, and what two exports write at once is not mixed."""
    if target.is_dir():
        raise InvalidInput(
            Problem("--output", f"{target} is a folder: name the file, such as {name}")
        )
    if not target.parent.is_dir():
        raise InvalidInput(Problem("--output", f"there is no folder {target.parent}"))
    real = target.resolve()
    with tempfile.TemporaryDirectory(prefix=".kalla-export-", dir=real.parent) as folder:
        made = Path(folder) / "rows"
        fetch(made)
        made.replace(real)


@contextmanager
def _written(target: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # who reads has seen enough: that is nothing to complain about
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unavailable(f"the export cannot be written: {target}: {reason}") from error


def _format(style: str | None, output: Path | None) -> Format:
    named = (output.suffix.removeprefix(".") if output and not style else style or "").lower()
    for known in FORMATS:
        if known == named or (known == "csv" and not style and named not in FORMATS):
            return known
    raise InvalidInput(Problem("--format", f"{style!r} is not one of {', '.join(FORMATS)}"))


def _storage() -> Storage:
    return Storage.of(settings.load().settings.storage)


def _print(found: Difference) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for letter, run in (("A", found.a), ("B", found.b)):
        console.print(visible(f"{letter}: {run.recipe}, {run.started_at}"), markup=False)
    for note in found.notes:
        console.print(visible(note), markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("")
    for side in SIDES:
        table.add_column(side, justify="right")
    for change in CHANGES:
        table.add_row(WORDS[change], *(f"{found.counts[side][change]:,}" for side in SIDES))
    console.print(table)
    for change, rows in found.examples.items():
        if rows:
            console.print(Text(f"\n{WORDS[change][0].upper()}{WORDS[change][1:]}:", style="bold"))
        for row in rows:
            amount = "" if row.amount is None else f" {money(row.amount)}"
            line = f"{row.side} {row.record_key}{amount}: {row.sentence()}"
            console.print(f"  {visible(line)}", markup=False)

"""Plans the application of `.sql` text: a printable plan with reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kalla.errors import InvalidInput, Problem
from kalla.spark.sandbox import hold, result_columns, tables_read
from kalla.tables.model import (
    Definition,
    Dropped,
    SourceDefinition,
    TableDefinition,
)
from kalla.tables.schedule.plan import ordered
from kalla.tables.store import Source, Table
from kalla.text_diff import changed_lines

Action = Literal["created", "changed", "rebuilt", "recomputed", "dropped", "unchanged"]
ColumnsOf = Callable[[SourceDefinition], Sequence[str]]
"""Looks into a source; raises InvalidInput when it cannot be read."""


@dataclass(frozen=True)
class Step:
    """The plan's step for one definition."""

    kind: Literal["source", "table"]
    name: str
    action: Action
    reason: str
    diff: tuple[str, ...] = ()  # removed lines with -, added lines with +


@dataclass(frozen=True)
class CheckedTable:
    """A definition with its query for Spark."""

    definition: TableDefinition
    query: str
    columns: tuple[str, ...]
    reads: frozenset[str]


@dataclass(frozen=True)
class ApplyPlan:
    steps: tuple[Step, ...]
    sources: tuple[SourceDefinition, ...]
    tables: tuple[CheckedTable, ...]  # upstream first
    dropped: tuple[str, ...] = ()  # readers first


def plan_apply(
    given: Sequence[Definition],
    sources: Mapping[str, Source],
    tables: Mapping[str, Table],
    columns_of: ColumnsOf,
) -> ApplyPlan:
    """Raises InvalidInput with every problem; inspects each source that is read."""
    new_sources = {each.name: each for each in given if isinstance(each, SourceDefinition)}
    new_tables = {each.name: each for each in given if isinstance(each, TableDefinition)}
    dropped = {each.name for each in given if isinstance(each, Dropped)}
    problems = _clashes(new_sources, new_tables, sources, tables)
    problems += [
        Problem(name, "is not a dynamic table, so it cannot be dropped", suggestion="leave it out")
        for name in sorted(dropped - tables.keys())
    ]
    tables = {name: each for name, each in tables.items() if name not in dropped}
    all_sources = {name: each.definition for name, each in sources.items()} | new_sources
    reads = {name: tables_read(each.query, name) for name, each in new_tables.items()}
    reads |= {name: frozenset(each.reads) for name, each in tables.items() if name not in reads}
    for name in reads:
        if lost := sorted(reads[name] & dropped):
            problems.append(
                Problem(
                    lost[0],
                    f"is read by {name}, so it cannot be dropped",
                    suggestion=f"drop {name} too, or change its query first",
                )
            )
    for name in new_tables:
        for read in sorted(reads[name] - all_sources.keys() - reads.keys() - dropped):
            problems.append(
                Problem(
                    name,
                    f"reads {read}, which is neither a source nor a dynamic table",
                    suggestion=f"add CREATE SOURCE {read} LOCATION '…' FORMAT DELTA|PARQUET|CSV",
                )
            )
    if problems:
        raise InvalidInput(*problems)
    order = ordered({name: frozenset(read & reads.keys()) for name, read in reads.items()})
    checked = _checked(order, new_tables, new_sources, tables, all_sources, reads, columns_of)
    steps = [_source_step(each, sources.get(each.name)) for each in new_sources.values()]
    steps += [_table_step(each.definition, tables.get(each.definition.name)) for each in checked]
    kept = {step.name for step in steps if step.action == "unchanged"}
    steps += _reader_steps(steps, reads, tables, order)
    steps += [Step("table", name, "dropped", "its rows are removed") for name in sorted(dropped)]
    return ApplyPlan(
        tuple(steps),
        tuple(each for each in new_sources.values() if each.name not in kept),
        tuple(each for each in checked if each.definition.name not in kept),
        tuple(sorted(dropped)),
    )


def _reader_steps(
    steps: Sequence[Step],
    reads: Mapping[str, frozenset[str]],
    tables: Mapping[str, Table],
    order: Sequence[str],
) -> list[Step]:
    """The unchanged tables that read recomputed ones."""
    anew = {step.name for step in steps if step.action in ("rebuilt", "changed")}
    anew -= {step.name for step in steps if step.kind == "table" and step.action == "changed"}
    given = {step.name for step in steps}
    found = []
    for name in order:
        if name in tables and name not in given and (changed := sorted(reads[name] & anew)):
            anew.add(name)
            found.append(Step("table", name, "recomputed", f"reads {', '.join(changed)}"))
    return found


def _clashes(
    new_sources: Mapping[str, SourceDefinition],
    new_tables: Mapping[str, TableDefinition],
    sources: Mapping[str, Source],
    tables: Mapping[str, Table],
) -> list[Problem]:
    other = "choose another name"
    problems = [
        Problem(name, "is a source already", suggestion=other)
        for name in sorted(new_tables.keys() & (sources.keys() | new_sources.keys()))
    ]
    problems += [
        Problem(name, "is a dynamic table", suggestion=other)
        for name in sorted(new_sources.keys() & tables.keys())
    ]
    for name, each in new_tables.items():
        known = tables.get(name)
        if known and not each.replace and known.definition != each.fields():
            problems.append(
                Problem(
                    name, "exists with another definition", suggestion="write CREATE OR REPLACE"
                )
            )
    for name, place in new_sources.items():
        source = sources.get(name)
        same = source and source.definition.place == place.place
        if source and not same and not place.replace:
            problems.append(
                Problem(name, "exists with another location", suggestion="write CREATE OR REPLACE")
            )
    return problems


def _checked(
    order: Sequence[str],
    new_tables: Mapping[str, TableDefinition],
    new_sources: Mapping[str, SourceDefinition],
    tables: Mapping[str, Table],
    all_sources: Mapping[str, SourceDefinition],
    reads: Mapping[str, frozenset[str]],
    columns_of: ColumnsOf,
) -> list[CheckedTable]:
    """The given tables, and a check of those that read what changes."""
    columns: dict[str, Sequence[str]] = {name: each.columns for name, each in tables.items()}
    problems: list[Problem] = []
    found = []
    for name in new_sources.keys() | {
        read for table in new_tables for read in reads[table] & all_sources.keys()
    }:
        try:
            columns[name] = columns_of(all_sources[name])
        except InvalidInput as error:
            problems += error.problems
    if problems:
        raise InvalidInput(*problems)
    changed = set(new_tables) | set(new_sources)
    for name in order:
        if name not in new_tables and not (reads[name] & changed):
            continue
        text = new_tables[name].query if name in new_tables else tables[name].definition["query"]
        for read in reads[name] & all_sources.keys():
            columns.setdefault(read, columns_of(all_sources[read]))
        try:
            query, outputs = _sandboxed(name, text, {read: columns[read] for read in reads[name]})
        except InvalidInput as error:
            problems += error.problems
            continue
        columns[name] = outputs
        if name in new_tables:
            found.append(CheckedTable(new_tables[name], query, outputs, reads[name]))
    if problems:
        raise InvalidInput(*problems)
    return found


def _sandboxed(
    name: str, text: str, known: Mapping[str, Sequence[str]]
) -> tuple[str, tuple[str, ...]]:
    """The query as the sandbox rewrites it, and the names of its columns."""
    query = hold(text, known, name, {})
    outputs = result_columns(query, known)
    if outputs is None or any(not each or not _plain(each) for each in outputs):
        raise InvalidInput(
            Problem(
                name, "a column of the result has no plain name", suggestion="name each one by AS"
            )
        )
    if len(set(outputs)) != len(outputs):
        raise InvalidInput(Problem(name, "two columns of the result have the same name"))
    return query, tuple(outputs)


def _plain(name: str) -> bool:
    return not any(sign in name for sign in " ,;{}()\n\t=`")


def _source_step(given: SourceDefinition, known: Source | None) -> Step:
    if known is None:
        return Step("source", given.name, "created", f"{given.format} at {given.location}")
    if known.definition.place == given.place:
        return Step("source", given.name, "unchanged", "")
    return Step("source", given.name, "changed", "its readers are recomputed: the location changed")


def _table_step(given: TableDefinition, known: Table | None) -> Step:
    if known is None:
        when = "now" if given.initialize == "ON_CREATE" else "by its schedule"
        return Step("table", given.name, "created", f"all rows are computed {when}")
    if known.hash != given.hash:
        old, new = known.definition["query"].splitlines(), given.query.splitlines()
        lines = changed_lines(tuple(old), tuple(new), context=1)[2:]
        reason = "the query changed: all rows are recomputed"
        return Step("table", given.name, "rebuilt", reason, lines)
    fields = given.fields()
    differs = sorted(key for key in fields if fields[key] != known.definition.get(key))
    if differs:
        diff = [f"-{key} = {known.definition.get(key)}" for key in differs]
        diff += [f"+{key} = {fields[key]}" for key in differs]
        reason = f"no row is recomputed: {', '.join(differs)}"
        return Step("table", given.name, "changed", reason, tuple(diff))
    return Step("table", given.name, "unchanged", "")

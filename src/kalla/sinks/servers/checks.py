"""Checks a pipeline's tables before it is saved: columns, types, engine, window."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kalla.errors import InvalidInput, Problem
from kalla.sinks.kernel import DEAD_LETTER_COLUMNS
from kalla.sinks.model import EXACTLY_ONCE, PROVENANCE, WITHIN_WINDOW, Column, Pipeline
from kalla.sinks.servers.clickhouse_client import (
    LEAST_WINDOW,
    ClickHouse,
    Target,
    check_problems,
    create_table,
    describe,
    window_of,
)

_LOOK_SECONDS = 5.0
_TO = re.compile(r"^CREATE MATERIALIZED VIEW \S+ (?:UUID \S+ )?TO (\S+)")


def wanted_columns(mapping: Sequence[Column], provenance: bool = True) -> dict[str, str]:
    """The columns that the table needs: those of the mapping and of provenance."""
    return {each.column: each.type for each in mapping} | (PROVENANCE if provenance else {})


def definitions(pipeline: Pipeline) -> dict[str, str]:
    """The CREATE TABLE of both tables, by name."""
    config = pipeline.clickhouse
    return {
        config.table: create_table(
            config.database,
            config.table,
            wanted_columns(pipeline.mapping, config.provenance),
            ["_topic", "_partition", "_offset"] if config.provenance else [],
        ),
        config.dead_letters: create_table(
            config.database,
            config.dead_letters,
            DEAD_LETTER_COLUMNS,
            ["pipeline", "topic", "partition", "offset"],
        ),
    }


def check_tables(pipeline: Pipeline, target: Target) -> str:
    """The guarantee that the tables allow; InvalidInput with the problems and the correct DDL."""
    config = pipeline.clickhouse
    server = ClickHouse(target, _LOOK_SECONDS)
    try:
        if config.create:
            for statement in definitions(pipeline).values():
                server.execute(statement)
        problems: list[Problem] = []
        probe = config.provenance
        for name, columns in (
            (config.table, wanted_columns(pipeline.mapping, config.provenance)),
            (config.dead_letters, DEAD_LETTER_COLUMNS),
        ):
            state = describe(server, name)
            if state is None:
                problems.append(
                    Problem(
                        f"clickhouse.{name}",
                        "there is no such table, or the user may not see it",
                        suggestion=definitions(pipeline)[name],
                    )
                )
                continue
            probe = probe and state.readable
            problems += check_problems(columns, state, name)
            problems += _view_problems(server, state.views, name)
    finally:
        server.close()
    if problems:
        raise InvalidInput(*problems)
    return EXACTLY_ONCE if probe else WITHIN_WINDOW


def _view_problems(server: ClickHouse, views: Sequence[str], table: str) -> list[Problem]:
    """A view whose target stores no tokens would duplicate rows that are inserted again."""
    problems = []
    for view in views:
        text = _definition(server, view)
        written_to = _TO.search(text)
        if written_to:
            text = _definition(server, written_to[1].replace("`", ""))
        if window_of(text) < LEAST_WINDOW:
            problems.append(
                Problem(
                    f"clickhouse.{table}",
                    f"the materialized view {view} writes to a table that remembers the tokens of "
                    f"fewer than {LEAST_WINDOW} blocks",
                    suggestion="write it with TO another table, made with "
                    "non_replicated_deduplication_window = 10000",
                )
            )
    return problems


def _definition(server: ClickHouse, name: str) -> str:
    database, _, table = name.rpartition(".")
    found = server.rows(
        "SELECT create_table_query AS text FROM system.tables"
        " WHERE database = {database:String} AND name = {name:String}",
        database=database or server.target.database,
        name=table,
    )
    return str(found[0]["text"]) if found else ""

"""Checks a pipeline's tables before it is saved: columns, types, engine, window."""

from __future__ import annotations

from collections.abc import Sequence

from kalla.errors import InvalidInput, Problem
from kalla.sinks.kernel import DEAD_LETTER_COLUMNS
from kalla.sinks.model import EXACTLY_ONCE, PROVENANCE, WITHIN_WINDOW, Column, Pipeline
from kalla.sinks.servers.clickhouse_client import (
    ClickHouse,
    Target,
    check_problems,
    create_table,
    describe,
)

_LOOK_SECONDS = 5.0


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
            probe = probe and (state.probe if name == config.table else state.readable)
            problems += check_problems(columns, state, name)
    finally:
        server.close()
    if problems:
        raise InvalidInput(*problems)
    return EXACTLY_ONCE if probe else WITHIN_WINDOW

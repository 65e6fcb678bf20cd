"""ClickHouse over HTTP: inserts under a token with a deadline, probes, and a description of a
table.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pyarrow as pa

from kalla.errors import Conflict, InvalidInput, Problem, Unavailable
from kalla.redaction import scrub

_NO_ACCESS = 497
_TIMEOUT = 159
_CODE = re.compile(r"Code: (\d+)")
_TO = re.compile(r"^CREATE MATERIALIZED VIEW \S+ (?:UUID \S+ )?TO (\S+)")
_LATE = "kalla: late"
LEAST_WINDOW = 100  # blocks; fewer may be pushed out before an intent is recovered
_CLOCK_SECONDS = 30.0
# Authentication, access, unknown table, database or column, types: waiting does not fix these.
_LASTING = {16, 36, 43, 47, 53, 60, 62, 81, 192, 193, 194, 497, 516}


class NoAnswer(Unavailable):
    """The server does not answer; an insert may have been made."""


class TooSlow(Unavailable):
    """The time did not suffice for a range: a smaller one may be delivered."""


class Late(TooSlow):
    """The deadline inside the statement has passed: nothing was inserted."""


class Refused(Conflict):
    """ClickHouse refused the request: a person must fix something."""


@dataclass(frozen=True)
class Target:
    """A table and who writes to it, with the password in the clear: never stored or logged."""

    url: str
    database: str
    table: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Target({self.url}, {self.database}.{self.table}, {self.user})"


class ClickHouse:
    """One connection. Its clock is compared with this machine's, so that deadlines need no common
    time.
    """

    def __init__(self, target: Target, seconds: float = 30.0) -> None:
        self.target = target
        self._http = httpx.Client(
            base_url=target.url,
            headers={"X-ClickHouse-User": target.user, "X-ClickHouse-Key": target.password},
            timeout=httpx.Timeout(seconds, connect=5.0),
        )
        self._clock: tuple[float, float] | None = None  # ours at the answer, theirs

    def close(self) -> None:
        self._http.close()

    def rows(self, statement: str, **parameters: object) -> list[dict[str, Any]]:
        answer = self._send(
            {"query": f"{statement} FORMAT JSONCompact", **_named(parameters)}, b""
        ).json()
        names = [each["name"] for each in answer["meta"]]
        return [dict(zip(names, row, strict=True)) for row in answer["data"]]

    def arrow(self, statement: str, **parameters: object) -> pa.Table:
        answer = self._send({"query": f"{statement} FORMAT ArrowStream", **_named(parameters)}, b"")
        return pa.ipc.open_stream(answer.content).read_all()

    def execute(self, statement: str) -> None:
        self._send({"query": statement}, b"")

    def now(self) -> float:
        """The time of ClickHouse's clock, never ahead of the true one."""
        mine = time.monotonic()
        if self._clock is None or mine - self._clock[0] > _CLOCK_SECONDS:
            (row,) = self.rows("SELECT toUnixTimestamp64Micro(now64(6)) AS micros")
            self._clock = (time.monotonic(), int(row["micros"]) / 1e6)
        ours, theirs = self._clock
        return theirs + (time.monotonic() - ours)

    def insert(
        self,
        table: str,
        batch: pa.Table,
        input_types: Mapping[str, str],
        token: str,
        deadline: float,
        comment: str,
    ) -> None:
        """All rows in one block, once per token, and not after `deadline` by ClickHouse's clock."""
        names = batch.column_names
        structure = ", ".join(f"{_quoted(name)} {input_types[name]}" for name in names)
        statement = (
            f"INSERT INTO {_quoted(self.target.database)}.{_quoted(table)}"
            f" ({', '.join(map(_quoted, names))})"
            f" SELECT {', '.join(map(_quoted, names))} FROM input({_literal(structure)})"
            # By the block's own time: now() would be that of the statement's first byte.
            f" WHERE NOT throwIf(toUnixTimestamp64Micro(nowInBlock64(6)) > {int(deadline * 1e6)},"
            f" '{_LATE}') FORMAT ArrowStream"
        )
        rows = str(max(batch.num_rows, 1))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_table(batch.combine_chunks())  # one record batch is one block
        settings = {
            "query": statement,
            "async_insert": "0",
            "insert_deduplicate": "1",
            "insert_deduplication_token": token,
            "deduplicate_blocks_in_dependent_materialized_views": "1",
            "max_insert_block_size": rows,
            "min_insert_block_size_rows": rows,
            "min_insert_block_size_bytes": "0",
            "max_block_size": rows,
            "max_insert_threads": "1",
            "max_partitions_per_insert_block": "0",
            "max_execution_time": str(max(1, int(deadline - self.now()))),
            "wait_end_of_query": "1",
            "log_comment": comment,
        }
        self._send(settings, sink.getvalue().to_pybytes())

    def _send(self, parameters: Mapping[str, str], body: bytes) -> httpx.Response:
        given = dict(parameters)
        try:
            answer = self._http.post("/", params=given, content=body)
        except httpx.HTTPError as error:
            raise NoAnswer(
                f"ClickHouse at {self.target.url} does not answer: {error or type(error).__name__}"
            ) from None
        if answer.is_success:
            return answer
        text = scrub(answer.text.strip())[:500]
        if _LATE in text:
            raise Late("the insert arrived after its deadline, and ClickHouse refused it")
        code = _CODE.search(text)
        if code and int(code[1]) in _LASTING:
            raise Refused(f"ClickHouse refuses: {text}")
        if code and int(code[1]) == _TIMEOUT:
            raise TooSlow(f"ClickHouse had too little time: {text}")
        raise Unavailable(f"ClickHouse cannot insert now: {text}")


def _named(parameters: Mapping[str, object]) -> dict[str, str]:
    return {f"param_{name}": str(value) for name, value in parameters.items()}


def _quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True)
class TableState:
    """A table as `system.tables` and `system.columns` describe it."""

    uuid: str
    engine: str
    columns: Mapping[str, str]
    window: int  # blocks whose tokens are stored; 0: none
    views: Mapping[str, int]  # materialized views on it, and the windows of their tables
    readable: bool = True  # whether the user may select its rows
    sorting_key: str = ""

    @property
    def probe(self) -> bool:
        """Whether it can be asked for the offsets it holds. Replacing, Summing and other engines
        merge rows of one sorting key into one, and its offsets with them.
        """
        kind = self.engine.removeprefix("Replicated").removeprefix("Shared")
        key = {each.strip(" `") for each in self.sorting_key.split(",")}
        return self.readable and (kind == "MergeTree" or {"_topic", "_partition", "_offset"} <= key)


def describe(server: ClickHouse, table: str) -> TableState | None:
    """None if there is no such table, or the user may not see it."""
    named = {"database": server.target.database, "table": table}
    found = server.rows(
        "SELECT toString(uuid) AS uuid, engine, engine_full, sorting_key,"
        " arrayMap((d, t) -> concat(d, '.', t), dependencies_database, dependencies_table) AS views"
        " FROM system.tables WHERE database = {database:String} AND name = {table:String}",
        **named,
    )
    if not found:
        return None
    columns = server.rows(
        "SELECT name, type FROM system.columns WHERE database = {database:String}"
        " AND table = {table:String} AND default_kind NOT IN ('ALIAS', 'MATERIALIZED')"
        " ORDER BY position",
        **named,
    )
    (row,) = found
    return TableState(
        row["uuid"],
        row["engine"],
        {each["name"]: each["type"] for each in columns},
        window_of(row["engine_full"]),
        {view: _view_window(server, view) for view in row["views"]},
        _readable(server, table),
        row["sorting_key"],
    )


def _view_window(server: ClickHouse, view: str) -> int:
    """Of the table that a view writes to: its own, or another."""
    text = _definition(server, view)
    written_to = _TO.search(text)
    return window_of(_definition(server, written_to[1].replace("`", "")) if written_to else text)


def _definition(server: ClickHouse, name: str) -> str:
    database, _, table = name.rpartition(".")
    found = server.rows(
        "SELECT create_table_query AS text FROM system.tables"
        " WHERE database = {database:String} AND name = {name:String}",
        database=database or server.target.database,
        name=table,
    )
    return str(found[0]["text"]) if found else ""


def _readable(server: ClickHouse, table: str) -> bool:
    try:
        server.rows(f"SELECT 1 FROM {_quoted(server.target.database)}.{_quoted(table)} LIMIT 0")
    except Refused as error:
        if f"Code: {_NO_ACCESS}" in str(error):
            return False
        raise
    return True


def window_of(definition: str) -> int:
    """How many inserts' tokens a table stores, by its CREATE TABLE or its engine's text."""
    replicated = re.search(r"(?:^|ENGINE = )(?:Replicated|Shared)", definition) is not None
    name = (
        "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"
    )
    given = re.search(rf"(?<![a-z_]){name} = (\d+)", definition)
    if given:
        return int(given[1])
    return 10_000 if replicated else 0


def check_problems(wanted: Mapping[str, str], state: TableState, table: str) -> list[Problem]:
    """The problems that prevent exactly-once delivery of these columns."""
    problems = []
    for name, kind in wanted.items():
        if name not in state.columns:
            problems.append(
                Problem(
                    f"clickhouse.{table}",
                    f"has no column {name}",
                    suggestion=f"ALTER TABLE {table} ADD COLUMN {name} {kind}",
                )
            )
        elif _plain(state.columns[name]) != _plain(kind):
            problems.append(
                Problem(
                    f"clickhouse.{table}.{name}",
                    f"is {state.columns[name]} in ClickHouse and {kind} in the mapping",
                    suggestion="make both the same",
                )
            )
    if not state.engine.endswith("MergeTree"):
        problems.append(Problem(f"clickhouse.{table}", f"has the engine {state.engine}",
                                suggestion="use MergeTree or one of its family"))  # fmt: skip
    elif state.window < LEAST_WINDOW:
        problems.append(
            Problem(
                f"clickhouse.{table}",
                f"remembers the tokens of {state.window} blocks, and {LEAST_WINDOW} are needed",
                suggestion=f"ALTER TABLE {table} MODIFY SETTING"
                " non_replicated_deduplication_window = 10000",
            )
        )
    # A view whose table stores no tokens would double rows that are inserted again.
    problems += [
        Problem(
            f"clickhouse.{table}",
            f"the materialized view {view} writes to a table that remembers the tokens of "
            f"fewer than {LEAST_WINDOW} blocks",
            suggestion="write it with TO another table, made with "
            "non_replicated_deduplication_window = 10000",
        )
        for view, window in state.views.items()
        if window < LEAST_WINDOW
    ]
    return problems


def _plain(kind: str) -> str:
    return kind.replace(" ", "").replace('"', "'")


def create_table(
    database: str, table: str, columns: Mapping[str, str], order: Sequence[str]
) -> str:
    lines = ",\n".join(f"    {_quoted(name)} {kind}" for name, kind in columns.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {_quoted(database)}.{_quoted(table)} (\n{lines}\n)"
        f" ENGINE = MergeTree ORDER BY {_order(order)}"
        " SETTINGS non_replicated_deduplication_window = 10000"
    )


def _order(columns: Sequence[str]) -> str:
    return f"({', '.join(map(_quoted, columns))})" if columns else "tuple()"


def require(problems: Sequence[Problem]) -> None:
    if problems:
        raise InvalidInput(*problems)

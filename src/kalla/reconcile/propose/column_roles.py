"""What each column of a table holds: amounts, dates, currencies, texts or codes, by its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import duckdb

from kalla.reconcile.propose.side_tables import SideTable

Role = Literal["amount", "integer", "date", "currency", "code", "text", "empty", "other"]

_MOSTLY = 0.95
_FEW = 20  # currencies
_FEW_ENOUGH_TO_COUNT = 1_000
LEAST_OF_ESTIMATE = 0.8  # an estimate is a few percent off
_CURRENCY = r"[A-Z]{3}"
_CURRENCIES = frozenset(
    [
        "AED",
        "AUD",
        "BGN",
        "BRL",
        "CAD",
        "CHF",
        "CNY",
        "CZK",
        "DKK",
        "EUR",
        "GBP",
        "HKD",
        "HUF",
        "ILS",
        "INR",
        "ISK",
        "JPY",
        "KRW",
        "MXN",
        "MYR",
        "NOK",
        "NZD",
        "PHP",
        "PLN",
        "RON",
        "RUB",
        "SAR",
        "SEK",
        "SGD",
        "THB",
        "TRY",
        "TWD",
        "UAH",
        "USD",
        "ZAR",
    ]
)


@dataclass(frozen=True)
class ColumnFacts:
    """The figures of a column, and its probable role."""

    name: str
    type: str  # in a word
    role: Role
    rows: int
    nulls: int
    distinct: int
    length: float  # of its texts, on average
    has_blanks: bool  # several words in most of its texts
    is_estimated: bool = False  # the distinct values, if there are many

    @property
    def given(self) -> int:
        return self.rows - self.nulls

    @property
    def uniqueness(self) -> float:
        return self.distinct / self.given if self.given else 0.0

    @property
    def may_be_unique(self) -> bool:
        """Whether each row has a value of its own; of an estimate, whether it is possible."""
        least = self.rows * (LEAST_OF_ESTIMATE if self.is_estimated else 1)
        return self.nulls == 0 and self.distinct >= least and self.rows > 0


def column_facts(connection: duckdb.DuckDBPyConnection, table: SideTable) -> list[ColumnFacts]:
    """The facts of every column, in one pass over the table; of a large one, roles and lengths are
    those of its sample, and many distinct values are estimated."""
    counts = _distinct_values(connection, table)
    asked: list[str] = []
    for name in table.names:
        text = table.text(name)
        number, day = table.number(name), table.day(name)
        asked += [
            f"count({text})",
            f"avg(length({text}))",
            f"count(*) FILTER (contains({text}, ' '))",
            f"count({number or 'NULL'})",
            f"count(*) FILTER ({number} <> trunc({number}))" if number else "0",
            f"count({day or 'NULL'})",
            f"count(*) FILTER (regexp_full_match({text}, '{_CURRENCY}'))",
        ]
    rows = table.sample if table.is_estimated else table.name
    found = _row(connection, asked, rows)
    facts = []
    for place, name in enumerate(table.names):
        some, length, blanks, numbers, fractions, days, codes = found[7 * place : 7 * place + 7]
        given, distinct = counts[name]
        role = _role(table, name, some, blanks, numbers, fractions, days)
        if role == "code" and codes >= _MOSTLY * some and distinct <= _FEW:
            values = connection.execute(f"SELECT DISTINCT {table.text(name)} FROM {rows}")
            if {row[0] for row in values.fetchall()} - {None} <= _CURRENCIES:
                role = "currency"
        facts.append(
            ColumnFacts(
                name,
                table.word(name),
                role,
                table.rows,
                table.rows - given,
                distinct,
                float(length or 0),
                blanks * 2 > some,
                table.is_estimated,
            )
        )
    return facts


def _distinct_values(
    connection: duckdb.DuckDBPyConnection, table: SideTable
) -> dict[str, tuple[int, int]]:
    """How many rows of each column hold a value, and how many distinct ones there are."""
    texts = {name: table.text(name) for name in table.names}
    how = "approx_count_distinct({})" if table.is_estimated else "count(DISTINCT {})"
    asked = [f"count({text})" for text in texts.values()]
    asked += [how.format(text) for text in texts.values()]
    found = _row(connection, asked, table.name)
    given = dict(zip(texts, found, strict=False))
    distinct = dict(zip(texts, found[len(texts) :], strict=True))
    few = [name for name in texts if distinct[name] <= _FEW_ENOUGH_TO_COUNT and table.is_estimated]
    counted = [f"count(DISTINCT {texts[name]})" for name in few]
    distinct |= zip(few, _row(connection, counted, table.name), strict=True)
    return {name: (given[name], min(distinct[name], given[name])) for name in texts}


def _row(connection: duckdb.DuckDBPyConnection, asked: list[str], rows: str) -> tuple[Any, ...]:
    if not asked:
        return ()
    return connection.execute(f"SELECT {', '.join(asked)} FROM {rows}").fetchone() or ()


def _role(
    table: SideTable,
    name: str,
    given: int,
    blanks: int,
    numbers: int,
    fractions: int,
    days: int,
) -> Role:
    word = table.word(name)
    if not given:
        return "empty"
    if word in ("date", "timestamp"):
        return "date"
    if word == "boolean":
        return "code"
    if word == "other":
        return "other"
    if (
        word == "text"
        and days >= _MOSTLY * given
        and not (numbers >= _MOSTLY * given and table.columns.csv.date_format != "%Y%m%d")
    ):
        return "date"
    if numbers >= _MOSTLY * given and word != "boolean":
        return "amount" if fractions or word in ("decimal", "float") else "integer"
    return "text" if blanks * 4 > given else "code"

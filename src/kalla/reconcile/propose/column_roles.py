"""What each column of a table holds: amounts, dates, currencies, texts or codes, by its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import duckdb

from kalla.reconcile.propose.side_tables import SideTable

Role = Literal["amount", "integer", "date", "currency", "code", "text", "empty", "other"]

_MOSTLY = 0.95
_FEW = 20  # currencies
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

    @property
    def given(self) -> int:
        return self.rows - self.nulls

    @property
    def uniqueness(self) -> float:
        return self.distinct / self.given if self.given else 0.0

    @property
    def is_unique(self) -> bool:
        return self.nulls == 0 and self.distinct == self.rows and self.rows > 0


def column_facts(connection: duckdb.DuckDBPyConnection, table: SideTable) -> list[ColumnFacts]:
    """The facts of every column, in one pass over the table."""
    asked: list[str] = []
    readings: list[tuple[str | None, str | None]] = []
    for name in table.names:
        text = table.text(name)
        number, day = table.number(name), table.day(name)
        readings.append((number, day))
        asked += [
            f"count({text})",
            f"count(DISTINCT {text})",
            f"avg(length({text}))",
            f"count(*) FILTER (contains({text}, ' '))",
            f"count({number or 'NULL'})",
            f"count(*) FILTER ({number} <> trunc({number}))" if number else "0",
            f"count({day or 'NULL'})",
            f"count(*) FILTER (regexp_full_match({text}, '{_CURRENCY}'))",
            f"min(length({text}))",
        ]
    found: tuple[Any, ...] = ()
    if asked:
        found = connection.execute(f"SELECT {', '.join(asked)} FROM {table.name}").fetchone() or ()
    facts = []
    for place, name in enumerate(table.names):
        given, distinct, length, blanks, numbers, fractions, days, codes, _ = found[
            9 * place : 9 * place + 9
        ]
        role = _role(table, name, given, blanks, numbers, fractions, days)
        if role == "code" and codes >= _MOSTLY * given and distinct <= _FEW:
            values = connection.execute(f"SELECT DISTINCT {table.text(name)} FROM {table.name}")
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
                blanks * 2 > given,
            )
        )
    return facts


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

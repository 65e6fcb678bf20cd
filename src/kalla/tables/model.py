"""The model of dynamic tables and their sources, parsed from `.sql` text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from kalla.errors import InvalidInput, Problem

Strategy = Literal["AUTO", "AFFECTED_KEYS", "DELTA", "FULL"]
Format = Literal["delta", "parquet", "csv", "registered"]
FILE_FORMATS: tuple[Format, ...] = ("delta", "parquet", "csv")
Initialize = Literal["ON_CREATE", "ON_SCHEDULE"]

LEAST_LAG_SECONDS = 1.0
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*\Z", re.IGNORECASE)
_UNITS = {
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip
_GRAMMAR = (
    "write CREATE [OR REPLACE] DYNAMIC TABLE name TARGET_LAG = '5 minutes' AS SELECT …,"
    " CREATE [OR REPLACE] SOURCE name LOCATION '/folder' FORMAT DELTA|PARQUET|CSV,"
    " CREATE SOURCE name REGISTERED 'name' [KEY (column, …)] [WATERMARK column],"
    " or DROP DYNAMIC TABLE name"
)


@dataclass(frozen=True)
class SourceDefinition:
    """A location that dynamic tables may read: a Delta table, a folder of files, or a table of a
    database under the name by which it is registered."""

    name: str
    location: str
    format: Format
    replace: bool = False
    key: tuple[str, ...] = ()
    watermark: str | None = None

    @property
    def place(self) -> tuple[object, ...]:
        """The identity of the source: a change makes it another source."""
        return (self.location, self.format, self.key, self.watermark)


@dataclass(frozen=True)
class TableDefinition:
    """A query and the maximum age of its result."""

    name: str
    query: str  # as the user wrote it
    lag_seconds: float | None  # None: DOWNSTREAM, as fresh as its readers need
    strategy: Strategy = "AUTO"
    strict: bool = False  # fail instead of falling back to FULL
    deduplication: bool = True  # rows that did not change are not written
    cardinality_threshold: float = 0.3  # share of affected keys above which FULL is cheaper
    initialize: Initialize = "ON_CREATE"
    comment: str = ""
    replace: bool = False

    @property
    def hash(self) -> str:
        """The hash of the query alone: the rows of the table depend on it."""
        return hashlib.sha256(self.query.encode()).hexdigest()[:16]

    def fields(self) -> dict[str, Any]:
        """The stored fields; `replace` belongs to the statement and not to the table."""
        return {name: value for name, value in asdict(self).items() if name != "replace"}


@dataclass(frozen=True)
class Dropped:
    """A dynamic table to drop."""

    name: str


Definition = TableDefinition | SourceDefinition | Dropped


def parse(text: str) -> list[Definition]:
    """Every statement of a `.sql` text; raises InvalidInput with all problems at once."""
    found: list[Definition] = []
    problems: list[Problem] = []
    for tokens, body in _statements(text):
        try:
            found.append(_Statement(tokens, body).definition())
        except InvalidInput as error:
            problems += error.problems
    names = [each.name for each in found]
    problems += [
        Problem(name, "is defined twice", suggestion="keep one of the statements")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if not found and not problems:
        problems.append(Problem("sql", "there is no statement", suggestion=_GRAMMAR))
    if problems:
        raise InvalidInput(*problems)
    return found


def duration_seconds(text: str, field: str) -> float:
    match = _DURATION.match(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidInput(
            Problem(
                field,
                f"'{text}' is not a duration",
                suggestion="write '30 seconds', '5 minutes', '2 hours' or '1 day'",
            )
        )
    return float(match[1]) * unit


def _statements(text: str) -> list[tuple[list[Token], str]]:
    """The tokens of each statement, with the text from which their offsets count."""
    try:
        tokens = Spark().tokenize(text)
    except SqlglotError:
        raise InvalidInput(Problem("sql", "a text, name or comment is not closed")) from None
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    return [(each, text) for each in statements if each]


class _Statement:
    """Reads one statement from its tokens, front to back."""

    def __init__(self, tokens: Sequence[Token], text: str) -> None:
        self._tokens = tokens
        self._text = text
        self._at = 0
        self._field = "sql"

    def definition(self) -> Definition:
        if self._accept("DROP"):
            self._expect("DYNAMIC")
            self._expect("TABLE")
            dropped = Dropped(self._name())
            if self._at < len(self._tokens):
                raise self._refusal(f"{self._shown()} is not expected here", _GRAMMAR)
            return dropped
        self._expect("CREATE")
        replace = self._accept("OR")
        if replace:
            self._expect("REPLACE")
        if self._accept("DYNAMIC"):
            self._expect("TABLE")
            return self._table(replace)
        if self._accept("SOURCE"):
            return self._source(replace)
        raise self._refusal(f"{self._shown()} is not expected after CREATE", _GRAMMAR)

    def _source(self, replace: bool) -> SourceDefinition:
        name = self._name()
        if self._accept("REGISTERED"):
            return self._registered(name, replace)
        self._expect("LOCATION")
        location = self._string("LOCATION")
        format_: Format = "delta"
        if self._accept("FORMAT"):
            self._accept("=")
            format_ = self._one_of("FORMAT", FILE_FORMATS, lower=True)
        if self._at < len(self._tokens):
            raise self._refusal(f"{self._shown()} is not expected here", _GRAMMAR)
        return SourceDefinition(name, location, format_, replace)

    def _registered(self, name: str, replace: bool) -> SourceDefinition:
        place = self._string("REGISTERED")
        key: list[str] = []
        watermark = None
        if self._accept("KEY"):
            self._expect("(")
            key.append(self._take())
            while self._accept(","):
                key.append(self._take())
            self._expect(")")
        if self._accept("WATERMARK"):
            watermark = self._take()
        if self._at < len(self._tokens):
            raise self._refusal(f"{self._shown()} is not expected here", _GRAMMAR)
        return SourceDefinition(name, place, "registered", replace, tuple(key), watermark)

    def _table(self, replace: bool) -> TableDefinition:
        name = self._name()
        given: dict[str, Any] = {}
        while not self._accept("AS"):
            option, value = self._option()
            if option in given:
                raise self._refusal(f"{option.upper()} is given twice")
            given[option] = value
        if "lag_seconds" not in given:
            raise self._refusal(
                "TARGET_LAG is missing", "write TARGET_LAG = '5 minutes' or TARGET_LAG = DOWNSTREAM"
            )
        if self._at >= len(self._tokens):
            raise self._refusal("the query is missing", "write AS SELECT …")
        query = self._text[self._tokens[self._at].start : self._tokens[-1].end + 1]
        if given.get("strict") and given.get("strategy") == "FULL":
            raise self._refusal("STRICT with FULL contradict each other", "leave STRICT out")
        return TableDefinition(name, query, replace=replace, **given)

    def _option(self) -> tuple[str, Any]:
        word = self._word()
        if word == "STRICT":
            return "strict", True
        self._accept("=")
        match word:
            case "TARGET_LAG":
                return "lag_seconds", self._lag()
            case "REFRESH_STRATEGY":
                return "strategy", self._one_of(word, get_args(Strategy))
            case "DEDUPLICATION":
                return "deduplication", self._one_of(word, ("TRUE", "FALSE")) == "TRUE"
            case "CARDINALITY_THRESHOLD":
                return "cardinality_threshold", self._share(word)
            case "INITIALIZE":
                return "initialize", self._one_of(word, get_args(Initialize))
            case "COMMENT":
                return "comment", self._string(word)
        raise self._refusal(
            f"{word} is not an option of a dynamic table",
            "options are TARGET_LAG, REFRESH_STRATEGY, STRICT, DEDUPLICATION,"
            " CARDINALITY_THRESHOLD, INITIALIZE, COMMENT; then AS SELECT …",
        )

    def _lag(self) -> float | None:
        if self._accept("DOWNSTREAM"):
            return None
        seconds = duration_seconds(self._string("TARGET_LAG"), f"{self._field}.TARGET_LAG")
        if seconds < LEAST_LAG_SECONDS:
            raise self._refusal("TARGET_LAG is below one second", "write at least '1 second'")
        return seconds

    def _share(self, option: str) -> float:
        text = self._take()
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise self._refusal(f"{option} is {text}, and must be between 0 and 1")
        return share

    def _one_of(self, option: str, values: Sequence[str], lower: bool = False) -> Any:
        text = self._take()
        value = text.lower() if lower else text.upper()
        if value not in values:
            raise self._refusal(f"{option} is {text}", f"it must be one of {', '.join(values)}")
        return value

    def _name(self) -> str:
        name = self._take().lower()
        if not _NAME.match(name):
            raise self._refusal(
                f"'{name}' is not a name for a table",
                "use letters, digits and underscores, at most 63, and begin with a letter",
            )
        self._field = name
        return name

    def _string(self, option: str) -> str:
        if not self._is(TokenType.STRING):
            raise self._refusal(f"{option} needs a text in quotes")
        return self._take()

    def _word(self) -> str:
        return self._take().upper()

    def _take(self) -> str:
        if self._at >= len(self._tokens):
            raise self._refusal("the statement ends too early", _GRAMMAR)
        self._at += 1
        return self._tokens[self._at - 1].text

    def _is(self, type_: TokenType) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].token_type is type_

    def _accept(self, word: str) -> bool:
        here = self._at < len(self._tokens) and not self._is(TokenType.STRING)
        if here and self._tokens[self._at].text.upper() == word:
            self._at += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._refusal(f"{word} is expected before {self._shown()}", _GRAMMAR)

    def _shown(self) -> str:
        if self._at >= len(self._tokens):
            return "the end of the statement"
        token = self._tokens[self._at]
        return f"{token.text[:40]!r} in line {token.line}"

    def _refusal(self, message: str, suggestion: str = "") -> InvalidInput:
        return InvalidInput(Problem(self._field, message, suggestion=suggestion))

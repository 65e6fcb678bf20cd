"""The model of a pipeline: one topic into one table, and how each column is filled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kalla.errors import InvalidInput, Problem

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
PROVENANCE = {
    "_topic": "LowCardinality(String)",
    "_partition": "Int32",
    "_offset": "Int64",
    "_generation": "Int32",
}

EXACTLY_ONCE = "exactly once"
WITHIN_WINDOW = "exactly once within the deduplication window"

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}")
# Settings of librdkafka on which a guarantee depends, or that would run programs on the machines of
# workers and API.
_OURS = re.compile(
    r"(group\..*|auto\.offset\.reset|enable\.(auto\..*|partition\.eof)|isolation\.level"
    r"|partition\.assignment\.strategy|session\.timeout\.ms|heartbeat\.interval\.ms"
    r"|max\.poll\.interval\.ms|bootstrap\.servers|plugin\..*|.*_cb|sasl\.kerberos\..*cmd)"
)
_SECRET = re.compile(
    r"(.*password|.*passphrase|.*secret|ssl\.key\.pem|.*private\.key\.pem|.*oauthbearer.*config)"
)
_PLAIN = re.compile(r"[A-Za-z0-9._/@:-]*")  # librdkafka puts these values into a shell command

Tombstones = Literal["skip", "dead_letter"]
KafkaField = Literal["key", "timestamp", "partition", "offset", "topic", "headers"]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KafkaConfig(Model):
    bootstrap_servers: str = Field(min_length=1, max_length=2000)
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    settings: dict[str, str] = Field({}, description="SASL, TLS and other settings of librdkafka")

    @field_validator("settings")
    @classmethod
    def _allowed(cls, settings: dict[str, str]) -> dict[str, str]:
        for name, value in settings.items():
            if _OURS.fullmatch(name):
                raise ValueError(f"{name} is not allowed in a pipeline: leave it out")
            if _SECRET.fullmatch(name) and not value.startswith("secret://"):
                raise ValueError(f"{name} must name a secret: secret://NAME")
            if name.startswith("sasl.kerberos.") and not _PLAIN.fullmatch(value):
                raise ValueError(f"{name} may hold letters, digits and the characters . _ / @ : -")
        return settings


class ClickHouseConfig(Model):
    url: str = Field(max_length=2000, description="of the HTTP interface")
    database: str = "default"
    table: str
    user: str = "default"
    password: str = Field("", description="secret://NAME, or nothing")
    create: bool = Field(False, description="create the tables where they are missing")
    provenance: bool = Field(
        True, description="write _topic, _partition, _offset, _generation with every row"
    )

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError("must be like http://host:8123, without a user")
        if parts.query or parts.fragment:
            raise ValueError("must have no query")
        return url.rstrip("/")

    @field_validator("database", "table")
    @classmethod
    def _identifier(cls, name: str) -> str:
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError("must be letters, digits and underscores")
        return name

    @field_validator("password")
    @classmethod
    def _secret(cls, password: str) -> str:
        if password and not password.startswith("secret://"):
            raise ValueError("must name a secret: secret://NAME (`kalla secret set NAME`)")
        return password

    @property
    def dead_letters(self) -> str:
        return f"{self.table}_dead_letters"


class Column(Model):
    """One column and where its value comes from: exactly one of path, kafka, header, constant."""

    column: str
    type: str = Field(max_length=500, description="the type in ClickHouse")
    path: str | None = Field(None, description="field of the message: customer.address.city")
    kafka: KafkaField | None = None
    header: str | None = Field(None, description="the last header of this name, as text")
    constant: Any = None
    default: Any = Field(None, description="where the path is absent; null is a value")
    unit: Literal["s", "ms", "us"] | None = Field(None, description="of an epoch number")

    @field_validator("column")
    @classmethod
    def _identifier(cls, name: str) -> str:
        if not _IDENTIFIER.fullmatch(name):
            raise ValueError("must be letters, digits and underscores")
        if name in PROVENANCE:
            raise ValueError("is filled by Kalla: leave it out of the mapping")
        return name

    @model_validator(mode="after")
    def _one_origin(self) -> Column:
        origins = [self.path, self.kafka, self.header]
        given = sum(each is not None for each in origins) + ("constant" in self.model_fields_set)
        if given != 1:
            raise ValueError("needs exactly one of path, kafka, header and constant")
        return self

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set


@dataclass(frozen=True)
class RowRules:
    """How messages become rows. A version never changes: tokens name it."""

    version: int
    mapping: tuple[Column, ...]
    filters: tuple[str, ...] = ()
    tombstones: Tombstones = "skip"


class Options(Model):
    """How a pipeline delivers; no option changes how messages become rows."""

    batch_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    flush_seconds: Annotated[float, Field(ge=0, le=60)] = Field(
        0.1, description="how long fewer than batch_rows may wait for more"
    )
    rows_per_second: Annotated[int, Field(ge=1)] | None = Field(
        None, description="the most messages that all replicas together deliver per second"
    )
    poison_percent: Annotated[int, Field(ge=1, le=99)] | None = Field(
        None, description="the pipeline stops when more of its last messages were dead letters"
    )


class Pipeline(Options):
    name: str = Field(pattern=NAME)
    kafka: KafkaConfig
    clickhouse: ClickHouseConfig
    mapping: tuple[Column, ...] = Field(max_length=2000)
    filters: tuple[str, ...] = Field(
        (), max_length=50, description="SQL predicates over the columns; a row passes all of them"
    )
    tombstones: Tombstones = Field("skip", description="what a message without a value becomes")
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1

    @property
    def rules(self) -> RowRules:
        """Not saved yet, therefore without a version."""
        return RowRules(0, self.mapping, self.filters, self.tombstones)

    @property
    def options(self) -> Options:
        return Options(**self.model_dump(include=set(Options.model_fields)))

    @field_validator("mapping")
    @classmethod
    def _distinct(cls, mapping: tuple[Column, ...]) -> tuple[Column, ...]:
        if not mapping:  # not by the field: that would also count columns that are wrong
            raise ValueError("needs at least one column")
        names = [each.column for each in mapping]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(doubled)}: a column is filled once")
        return mapping


def parse(text: str) -> Pipeline:
    """A pipeline from YAML or JSON; every problem is named at once."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(Problem("", f"is not YAML: {error}")) from None
    return validate(document)


def validate(document: object) -> Pipeline:
    if not isinstance(document, Mapping):
        raise InvalidInput(Problem("", "must be a mapping with name, kafka, clickhouse, mapping"))
    try:
        pipeline = Pipeline.model_validate(dict(document))
    except ValidationError as error:
        raise InvalidInput(
            *(
                Problem(".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, "))
                for each in error.errors()
            )
        ) from None
    if problems := rule_problems(pipeline.mapping, pipeline.filters):
        raise InvalidInput(*problems)
    return pipeline


def rule_problems(mapping: Sequence[Column], filters: Sequence[str]) -> list[Problem]:
    """The problems of types, constants, defaults and filters."""
    from kalla.sinks.rows.filters import filter_problems  # these need this module
    from kalla.sinks.rows.mapping import mapping_problems

    return mapping_problems(mapping) or filter_problems(filters, mapping)

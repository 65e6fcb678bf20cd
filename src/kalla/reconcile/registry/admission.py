"""Decides which sources a recipe may read through the API: registered ones only.

A recipe names one as source://NAME, or gives a uri that a registered source covers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from pydantic import Field

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe import legacy_formats, parameter_values, validation, yaml_values
from kalla.reconcile.recipe.model import SIDES, Column, Recipe, Side, Source
from kalla.reconcile.recipe.recipe_problems import did_you_mean, leaves, spelled
from kalla.reconcile.registry import uri_coverage
from kalla.reconcile.registry.uri_coverage import Refused
from kalla.redaction import scrub
from kalla.spark.connectors.postgres_schemas import is_reserved

UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_REFERENCE = re.compile(r"source://(?P<name>[^/?#]*)/?", re.IGNORECASE)
_MAY_NAME = re.compile(r"source://|\$\{", re.IGNORECASE)
_FROM_REGISTRY = {"uri", "password"}
_MOST_SUGGESTED = 20
_NOTHING: Mapping[str, str] = MappingProxyType({})


class SourceDocument(Source):
    """A source without a run: the key may be left to the recipes that use it."""

    primary_key: tuple[Column, ...] = Field((), max_length=16)

    def fields(self) -> dict[str, Any]:
        """The given fields, as lists and plain values."""
        return {name: _plain(value) for name, value in self.model_dump(exclude_unset=True).items()}


Known = Mapping[str, SourceDocument]
"""The registered sources by name."""


@dataclass(frozen=True)
class Resolved:
    """The text of a recipe with registered sources filled in, and what is wrong with their names.

    A name that depends on a parameter without a value is unknown, and stays unchanged.
    """

    text: str
    problems: tuple[Problem, ...] = ()


def admit(recipe: Recipe, known: Known) -> Recipe:
    """The recipe with both sources as registered, or InvalidInput that says what to do.

    Resolves links in the file system.
    """
    found: dict[str, Source] = {}
    problems: list[Problem] = []
    for side in SIDES:
        try:
            found[side] = admit_source(recipe.sources[side], side, known)
        except InvalidInput as error:
            problems += error.problems
    if problems:
        raise InvalidInput(*problems)
    return recipe.model_copy(update={"sources": recipe.sources.model_copy(update=found)})


def admit_source(source: Source, side: Side, known: Known) -> Source:
    """One source, checked against the registered ones."""
    name = _reference(source.uri)
    if name is not None:
        found = _by_name(source, side, _named(known, name, side))
    else:
        found = _by_uri(source, side, known)
    if faults := list(_table_problems(found, f"sources.{side}")):
        raise InvalidInput(*faults)
    return found


def resolved(
    text: str,
    known: Known,
    given: Mapping[str, str] = _NOTHING,
    uris: Mapping[str, str] = _NOTHING,
) -> Resolved:
    """The text of a recipe with `source://NAME` filled in, and with other uris if any are given.

    Invalid parts stay unchanged: the parser reports them.
    """
    if not uris and not _MAY_NAME.search(text):
        return Resolved(text)
    try:
        parsed = yaml_values.parse(text)
    except InvalidInput:
        return Resolved(text)
    if parsed.findings or not isinstance(parsed.value, dict):
        return Resolved(text)
    document, problems = _resolve(_with_uris(parsed.value, uris), known, given)
    return Resolved(text if document == parsed.value else yaml_values.write(document), problems)


def source_problems(source: SourceDocument) -> Iterator[Problem]:
    """The problems of a source that is to be registered."""
    unstorable = [
        path
        for path, value in leaves(source.fields())
        if isinstance(value, str) and UNSTORABLE.search(value)
    ]
    if unstorable:
        for path in unstorable:
            yield Problem(spelled(("source", *path)), "holds a NUL or half of a character",
                          suggestion="write it again")  # fmt: skip
        return
    for each in validation.check_source(source):
        if each.field == "table" and source.table is None:
            continue  # all of the database: recipes name the table
        yield replace(each, field=f"source.{each.field}")
    yield from _table_problems(source, "source")
    kind = uri_coverage.kind_of(source.uri)
    if kind == "source":
        yield Problem("source.uri", "names another source", source.uri,
                      "give the uri of the rows")  # fmt: skip
    elif kind == "file":
        place = PurePosixPath(uri_coverage.path_of(source.uri))
        if not place.is_absolute():
            yield Problem(
                "source.uri",
                "is a relative path, and servers have other working folders than you",
                source.uri,
                "begin it with /",
            )
        elif ".." in place.parts:
            yield Problem("source.uri", "must not hold `..`", source.uri,
                          "write the path it stands for")  # fmt: skip


def _resolve(
    document: Mapping[str, Any], known: Known, given: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """A recipe's document with the registered fields of each `source://NAME` filled in.

    Fields of the recipe win, except uri, password and a registered table. The two older
    shapes do not know these fields: theirs are filled in by `admit`.
    """
    said = document.get("sources")
    if not isinstance(said, dict) or legacy_formats.modernise(document).origins:
        return dict(document), ()
    sources = dict(said)
    problems: list[Problem] = []
    for side, uri in _uris(document, given).items():
        if (name := _reference(uri)) is None:
            continue
        try:
            registered = _named(known, name, side)
        except InvalidInput as error:
            problems += error.problems
            continue
        fixed = _fixed(registered)
        own = {key: item for key, item in said[side].items() if key not in fixed}
        sources[side] = _escaped(registered.fields()) | own
    return {**document, "sources": sources}, tuple(problems)


def _uris(document: Mapping[str, Any], given: Mapping[str, str]) -> dict[Side, object]:
    """The known uris: one may depend on a parameter."""
    part = {name: document[name] for name in ("parameters", "sources") if name in document}
    filled = parameter_values.fill(part, given)
    sources = filled.document["sources"]
    fields = {side: sources.get(side) for side in SIDES} if isinstance(sources, dict) else {}
    return {
        side: each.get("uri")
        for side, each in fields.items()
        if isinstance(each, dict) and ("sources", side, "uri") not in filled.unfilled
    }


def _with_uris(document: Mapping[str, Any], uris: Mapping[str, str]) -> dict[str, Any]:
    """As they are: no parameter is filled into them."""
    sources = document.get("sources", {})
    for side, uri in uris.items():
        fields = sources.get(side, {}) if isinstance(sources, dict) else None
        if isinstance(fields, dict):
            sources = sources | {side: fields | {"uri": parameter_values.escaped(uri)}}
    return {**document, "sources": sources} if uris else dict(document)


def _reference(uri: object) -> str | None:
    found = _REFERENCE.fullmatch(uri) if isinstance(uri, str) else None
    return found["name"] if found else None


def _named(known: Known, name: str, side: Side) -> SourceDocument:
    if name in known:
        return known[name]
    hint = did_you_mean(name, list(known)[:_MOST_SUGGESTED])
    command = f"an admin registers it with `kalla sources add {shlex.quote(name)} URI`"
    raise InvalidInput(
        Problem(
            f"sources.{side}.uri",
            f"there is no registered source {name!r}",
            f"source://{name}",
            hint or command,
        )
    )


def _fixed(registered: SourceDocument) -> set[str]:
    """The fields that a recipe cannot override. A database without a table covers all of its
    tables.
    """
    is_open = uri_coverage.kind_of(registered.uri) == "database" and registered.table is None
    return _FROM_REGISTRY if is_open else _FROM_REGISTRY | {"table"}


def _by_name(source: Source, side: Side, registered: SourceDocument) -> Source:
    fixed = _fixed(registered)
    values = {name: getattr(registered, name) for name in registered.model_fields_set} | {
        name: getattr(source, name) for name in source.model_fields_set if name not in fixed
    }
    merged = Source(**values)
    merged = merged.model_copy(update={"uri": _followed(merged.uri, side)})
    if problems := validation.check_source(merged):
        raise InvalidInput(
            *(replace(each, field=f"sources.{side}.{each.field}") for each in problems)
        )
    return merged


def _by_uri(source: Source, side: Side, known: Known) -> Source:
    uri_shown = scrub(source.uri)
    fault = Problem(
        f"sources.{side}.uri",
        f"{uri_shown} is not a registered source",
        uri_shown,
        f"{_way_to_register(uri_shown)}, or use a registered one as source://NAME",
    )
    for registered in known.values():
        try:
            uri = uri_coverage.covered(registered.uri, source.uri)
        except Refused as refusal:
            fault = Problem(f"sources.{side}.uri", str(refusal), uri_shown)
            continue
        if uri is None:
            continue
        if registered.table not in (None, source.table):
            fault = Problem(
                f"sources.{side}.table",
                f"is not {registered.table}, the one table that is registered of this database",
                source.table,
                "an admin must register the other one too; then use it as source://NAME",
            )
            continue
        if source.password in (None, registered.password):
            return source.model_copy(update={"uri": uri, "password": registered.password})
        # A secret goes to the places it was registered for, and to no others.
        fault = Problem(
            f"sources.{side}.password",
            "is another secret than the registered source's",
            suggestion="leave it out",
        )
    raise InvalidInput(fault)


def _way_to_register(uri: str) -> str:
    is_relative = uri_coverage.kind_of(uri) == "file" and not uri_coverage.path_of(uri).startswith(
        "/"
    )
    if is_relative:
        return "write its absolute path, for servers have other working folders than you"
    return f"an admin must run `kalla sources add NAME {shlex.quote(uri)}`"


def _followed(uri: str, side: Side) -> str:
    """Resolves links, so that none can be added before the run reads it.

    A registered folder covers its contents, but no targets of links in it.
    """
    if uri_coverage.kind_of(uri) != "file":
        return uri
    try:
        inside = uri_coverage.covered(uri, uri)
    except Refused as refusal:
        raise InvalidInput(Problem(f"sources.{side}.uri", str(refusal), scrub(uri))) from None
    if inside is None:
        raise InvalidInput(
            Problem(
                f"sources.{side}.uri",
                f"{uri} cannot be searched for links that lead out of it",
                scrub(uri),
                "an admin must check that Kalla may read all of it",
            )
        )
    return inside


def _table_problems(source: Source, where: str) -> Iterator[Problem]:
    """By the schema that is written; what a name without one leads to, the connector sees."""
    schema, dot, _ = (source.table or "").replace('"', "").partition(".")
    schema = schema.strip().lower()
    if dot and is_reserved(schema):
        yield Problem(f"{where}.table", f"is in the schema {schema}, which is not a source of rows",
                      source.table, "name a table of your own")  # fmt: skip


def _escaped(value: Any) -> Any:
    """A registered value may contain `${` literally."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return parameter_values.escaped(value) if isinstance(value, str) else value


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value

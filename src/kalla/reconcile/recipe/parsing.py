"""Parses a recipe: YAML, JSON or an older format; reports all problems at once.

`docs/recipe.schema.json` is `kalla recipe schema > docs/recipe.schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import (
    error_recovery,
    legacy_formats,
    match_sql_checks,
    parameter_values,
    structure_errors,
    validation,
    yaml_values,
)
from kalla.reconcile.recipe.column_checks import Columns
from kalla.reconcile.recipe.error_recovery import Salvage
from kalla.reconcile.recipe.model import Recipe, Side, Source
from kalla.reconcile.recipe.recipe_problems import MOST_PROBLEMS, Finding, Path, RecipeProblem

__all__ = [
    "ColumnLookup",
    "RecipeProblem",
    "json_schema",
    "read",
    "read_source",
    "refuse_large",
    "write",
    "write_source",
]

# How many bytes a sign of a text has at the most, once it is written out: in a list of short values
# each has a line of its own.
_MOST_SPREAD = 12
_SAYING = {"rules", "match_sql"}  # what matches
_NOTHING: Mapping[str, str] = MappingProxyType({})

# The columns of these sides of a recipe, as far as they can be found.
ColumnLookup = Callable[[Recipe, Collection[Side]], Mapping[Side, Columns]]


def read(
    text: str,
    given: Mapping[str, str] = _NOTHING,
    *,
    left: str | None = None,
    right: str | None = None,
    columns: ColumnLookup | None = None,
) -> Recipe:
    """The recipe that `text` holds, its parameters filled; InvalidInput names every problem.

    `left` and `right` take the place of the sources' uris. `columns` reads the sources' columns, so
    that missing columns are reported too.
    """
    parsed = yaml_values.parse(text)
    if not isinstance(parsed.value, dict):
        said = "is empty" if parsed.value is None else "must be fields and their values"
        raise InvalidInput(
            Finding((), f"the document {said}", parsed.value, "begin with `name: …`").problem()
        )
    modern = legacy_formats.modernise(parsed.value)
    document = _with_uris(modern.document, left, right)
    filled = parameter_values.fill(document, given)
    found_at: dict[Path, Finding] = {}
    for each in (*parsed.findings, *modern.findings):
        _add_finding(each, each.path, found_at)
    for each in filled.findings:
        _add_finding(each, modern.place(each.path), found_at)
    faults = [*(each.path for each in (*parsed.findings, *filled.findings)), *filled.unfilled]
    recipe = None
    structural: Iterable[Finding] = ()
    try:
        recipe = Recipe.model_validate(_dated(filled.document))
    except ValidationError as error:
        structural = structure_errors.findings(error, filled.document)
    for each in chain(structural, structure_errors.out_of_place(filled.document)):
        if len(found_at) > MOST_PROBLEMS:
            raise _invalid(found_at)  # a suggestion costs time, and long lists are not read
        faults.append(each.path)
        if each.path not in filled.unfilled:
            _add_finding(each, modern.place(each.path), found_at)
    if recipe is not None and not found_at:
        found: Salvage | None = Salvage(recipe)
    else:  # an older document with problems was not converted completely
        found = None if modern.findings else error_recovery.of(_dated(filled.document), faults)
    of_sql = [] if found is None else _judge(found, faults, modern.place, columns, found_at)
    if recipe is None or found_at or of_sql:
        raise _invalid(found_at, of_sql)
    if (len(text) + filled.grown) * _MOST_SPREAD > yaml_values.LARGEST_BYTES:
        refuse_large(recipe)
    return recipe


def write(recipe: Recipe) -> str:
    """The recipe as YAML, without defaults; parsing it gives an equal recipe."""
    document = recipe.model_dump(exclude_defaults=True)
    for rule, written in zip(recipe.rules, document.get("rules", ()), strict=True):
        for condition, fields in zip(rule.conditions, written["conditions"], strict=True):
            # The operation is a default of its class, but nothing can be read without it.
            fields["op"] = condition.op
    return yaml_values.write(
        {key: item if key == "parameters" else _writable(item) for key, item in document.items()}
    )


def refuse_large(recipe: Recipe) -> None:
    """Refuses a recipe that is too large for a run's jobs, which carry its text in JSON."""
    written = write(recipe.model_copy(update={"parameters": {}}))
    size = len(json.dumps(written, ensure_ascii=False).encode())
    if size > yaml_values.LARGEST_BYTES:
        raise InvalidInput(
            RecipeProblem(
                "",
                f"the document has {size:,} bytes when parameters and sources are written out, and "
                f"a run carries {yaml_values.LARGEST_BYTES:,} at the most",
                suggestion="keep long lists of values in a source",
            )
        )


def write_source(source: Source) -> str:
    """A source by itself, without what is there by default; no parameter is left in it."""
    return yaml_values.write(_listed(source.model_dump(exclude_defaults=True)))


def read_source(text: str) -> Source:
    """What `write_source` has written; numbers and dates of its filters stay what they are."""
    return Source.model_validate(yaml_values.parse(text).value)


def json_schema() -> dict[str, Any]:
    """The recipe's JSON Schema, as editors and other programs take it."""
    schema = Recipe.model_json_schema()
    schema["$defs"]["Filled"] = {
        "type": "string",
        "pattern": r"^\$\{[^{}]+\}$",
        "description": "the value of a parameter",
    }
    _open_to_parameters(schema)
    schema["properties"]["version"] = {"enum": ["1", 1], "default": "1", "title": "Version"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Kalla recipe",
    } | {key: item for key, item in schema.items() if key != "title"}


def _judge(
    found: Salvage,
    faults: Sequence[Path],
    place: Callable[[Path], Path],
    columns: ColumnLookup | None,
    found_at: dict[Path, Finding],
) -> list[RecipeProblem]:
    """Validates the recipe and returns the problems of its SQL.

    Parts of an invalid value, and its parents, are not reported again.
    """
    spoiled = {place(path) for path in faults}
    around = {path[:length] for path in spoiled for length in range(len(path) + 1)}
    # An unknown field may be a misspelled `rules` or `match_sql`, and one of the two is enough.
    known = Recipe.model_fields.keys() - _SAYING
    hides = any(len(path) == 1 and path[0] not in known for path in faults)
    unsaid = {(name,) for name in _SAYING} if hides else set()
    seen = columns(found.recipe, found.readable) if columns else {}
    for each in validation.findings(found.recipe, seen, found.altered):
        if len(found_at) > MOST_PROBLEMS:
            break
        there = place(each.path)
        within = any(there[:length] in spoiled for length in range(1, len(there) + 1))
        if there not in around and not within and each.path not in unsaid:
            _add_finding(each, there, found_at)
    return [
        each.problem() for each in match_sql_checks.findings(found.recipe, seen, keys=not faults)
    ]


def _with_uris(
    document: Mapping[str, object], left: str | None, right: str | None
) -> dict[str, object]:
    changed = dict(document)
    for side, uri in (("left", left), ("right", right)):
        sources = changed.get("sources", {})
        if uri is not None and isinstance(sources, dict):
            source = sources.get(side, {})
            if isinstance(source, dict):
                changed["sources"] = sources | {side: source | {"uri": uri}}
    return changed


def _dated(document: dict[str, object]) -> dict[str, object]:
    """`version: 1` is a number in YAML; quotes should not be necessary."""
    version = document.get("version")
    is_first = version == "1.0" or (isinstance(version, int | Decimal) and version == 1)
    return document | {"version": "1"} if is_first and version is not True else document


def _add_finding(finding: Finding, place: Path, found_at: dict[Path, Finding]) -> None:
    """Adds one problem per place, and none inside a place that is invalid already."""
    if not any(place[:length] in found_at for length in range(1, len(place) + 1)):
        found_at[place] = finding


def _invalid(
    found_at: Mapping[Path, Finding], others: Sequence[RecipeProblem] = ()
) -> InvalidInput:
    problems = [each.problem(place) for place, each in list(found_at.items())[:MOST_PROBLEMS]]
    problems += others
    if len(found_at) > MOST_PROBLEMS:
        problems.append(
            RecipeProblem("", f"there are more problems; these are the first {MOST_PROBLEMS}")
        )
    return InvalidInput(*problems)


def _listed(item: object) -> object:
    if isinstance(item, dict):
        return {key: _listed(below) for key, below in item.items()}
    return [_listed(below) for below in item] if isinstance(item, tuple | list) else item


def _writable(item: object) -> object:
    if isinstance(item, dict):
        return {key: _writable(below) for key, below in item.items()}
    if isinstance(item, tuple | list):
        return [_writable(below) for below in item]
    return parameter_values.escaped(item) if isinstance(item, str) else item


def _open_to_parameters(schema: object) -> None:
    """A number may be written `${name}`: let the schema say so."""
    if isinstance(schema, list):
        for item in schema:
            _open_to_parameters(item)
    elif isinstance(schema, dict):
        for name, item in schema.items():
            _open_to_parameters(item)
            if not isinstance(item, dict) or name == "items":
                continue
            filled = {"$ref": "#/$defs/Filled"}
            if item.get("type") in ("integer", "number", "boolean"):
                kept = {key: item.pop(key) for key in list(item) if key not in _ABOUT}
                item["anyOf"] = [kept, filled]
            elif any(each.get("type") in ("integer", "number") for each in item.get("anyOf", ())):
                item["anyOf"].append(filled)


_ABOUT = ("title", "description", "default")

"""The structural problems of a recipe: found by pydantic, worded by Kalla."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kalla.reconcile.recipe.model import (
    BOUNDS,
    SIDES,
    Bounds,
    Comparison,
    Condition,
    Csv,
    DatePart,
    DateWindow,
    Equal,
    Filter,
    Fuzzy,
    Parameter,
    Recipe,
    Regex,
    Rule,
    Source,
    Sources,
    Text,
    Tolerance,
    Workbook,
)
from kalla.reconcile.recipe.recipe_problems import Finding, Path, did_you_mean, leaves, nearest

_OPERATIONS: dict[str, type[Condition]] = {
    "eq": Equal,
    "tolerance": Tolerance,
    "date_window": DateWindow,
    "fuzzy": Fuzzy,
    **dict.fromkeys(("contains", "startswith", "endswith"), Text),
    **dict.fromkeys(("ne", "lt", "lte", "gt", "gte"), Comparison),
}
_PARTS: dict[str, tuple[str, type[BaseModel]]] = {
    "": ("a recipe", Recipe),
    "sources": ("sources", Sources),
    "left": ("a source", Source),
    "right": ("a source", Source),
    "csv": ("csv", Csv),
    "xlsx": ("xlsx", Workbook),
    "filters": ("a filter", Filter),
    "left_filters": ("a filter", Filter),
    "right_filters": ("a filter", Filter),
    "rules": ("a rule", Rule),
    "bounds": ("bounds", Bounds),
}
_CALLED_OTHERWISE = {
    "threshold": "absolute",
    "tolerance": "absolute",
    "similarity": "threshold",
    "pattern": "cardinality",
    "match_rules": "rules",
    "key": "primary_key",
    "type": "format",
    "path": "uri",
    "url": "uri",
    "tz": "time_zone",
    "where": "filters",
    "values": "value",
    "sql": "match_sql",
}
_QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")
_SIGNS = "., '"  # shown in quotes, so that their ends are visible
_DERIVATIONS = ("trim", "upper", "lower", "digits", "{regex: …}", "{date_part: …}")
_EXAMPLES = {
    "name": "any text that identifies it",
    "sources": "such as {left: {uri: …, primary_key: […]}, right: {…}}",
    "source": "such as {uri: invoices.csv, primary_key: [id]}",
    "uri": "a path, s3://…, postgresql://… or source://NAME",
    "primary_key": "name the columns that identify a row, such as primary_key: [id]",
    "conditions": "such as [{left: ref, op: eq, right: ref}]",
    "column": "name a column",
    "op": "such as eq",
    "threshold": "such as 0.9",
    "chunk_threshold_rows": "such as 1000000",
    "max_parallel_chunks": "such as 8",
    **dict.fromkeys(BOUNDS, "such as 0.01"),
    **dict.fromkeys(("days", "before", "after"), "such as 3"),
    **{name: f"such as {bound.default}" for name, bound in Bounds.model_fields.items()},
}
_SENTENCES = {
    "missing": "is missing",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must not be longer than {max_length} characters",
    "string_pattern_mismatch": "must name a secret",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "too_long": "must not have more than {max_length} entries",
    "model_type": "must be fields and their values",
    "model_attributes_type": "must be fields and their values",
    "dict_type": "must be names and their values",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "int_from_float": "must be a whole number",
    "decimal_type": "must be a number",
    "decimal_parsing": "must be a number",
    "decimal_max_digits": "must not have more than {max_digits} digits",
    "finite_number": "must be a number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def findings(error: ValidationError, document: dict[str, object]) -> Iterator[Finding]:
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and item["input"]:
            continue  # its entries are invalid and reported separately
        yield _finding(item, document)
        if item["type"].startswith("union_tag") and isinstance(item["input"], dict):
            yield from _beside_operation(item["loc"], item["input"])


def out_of_place(document: dict[str, object]) -> Iterator[Finding]:
    """`true` where a number is required: pydantic would read it as 1."""
    for path, value in leaves(document):
        names = [part for part in path if isinstance(part, str)]
        if isinstance(value, bool) and names[-1] not in (
            "header", "accept_suggested", "value", "default",
        ):  # fmt: skip
            word = "true" if value else "false"
            yield Finding(path, "must not be true or false", value,
                          f'put it in quotes if it is a text: "{word}"')  # fmt: skip


def _beside_operation(path: Path, condition: dict[str, object]) -> Iterator[Finding]:
    """If a condition's operation is unknown, its other fields can be invalid as well."""
    fields = Condition.model_fields.keys()
    try:
        Condition.model_validate({name: condition[name] for name in fields & condition.keys()})
    except ValidationError as error:
        for finding in findings(error, condition):
            yield replace(finding, path=(*path, *finding.path))


def _finding(item: ErrorDetails, document: dict[str, object]) -> Finding:
    path, kind, value = item["loc"], item["type"], item["input"]
    operation: str | None = None
    if path[:1] == ("rules",) and path[2:3] == ("conditions",) and len(path) > 4:
        operation = str(path[4])  # pydantic's tag of the kind of condition
        path = (*path[:4], *path[5:])
    for index, part in enumerate(path):
        above = path[index - 1] if index else ""
        if isinstance(part, int) and str(above).startswith("derive"):
            return _derivation(path[: index + 1], _at(document, path[: index + 1]))
        if part == "value" and isinstance(above, int) and kind != "extra_forbidden":
            return Finding(path[: index + 1], "must be one value, or a list of values",
                           _at(document, path[: index + 1]), "such as 10, or [A, B]")  # fmt: skip
        if path[0] == "parameters" and index == 2 and part == "default":
            return Finding(path[:3], "must be one value", _at(document, path[:3]),
                           "such as 0.01")  # fmt: skip
    if kind.startswith("union_tag"):
        given = value.get("op") if isinstance(value, dict) else None
        if kind == "union_tag_not_found":
            return Finding((*path, "op"), "is missing", suggestion=f"one of {_all(_OPERATIONS)}")
        return Finding(
            (*path, "op"), "is not an operation", given, did_you_mean(given, _OPERATIONS)
        )
    if kind == "extra_forbidden":
        return _unknown(path, value, operation)
    if kind == "literal_error":
        # An apostrophe is in double quotes there.
        known = [one or other for one, other in _QUOTED.findall(item["ctx"]["expected"])]
        choices = [each if each.strip(_SIGNS) else f'"{each}"' for each in known]
        return Finding(path, f"must be {_one_of(choices)}", value, _near(value, known))
    sentence = _SENTENCES.get(kind, "cannot be read").format_map(item.get("ctx", {}))
    return Finding(path, sentence, None if kind == "missing" else value, _remedy(kind, path, value))


def _unknown(path: Path, value: object, operation: str | None) -> Finding:
    name = path[-1]
    if operation is not None:
        what, known = f"a condition `{operation}`", _OPERATIONS[operation].model_fields.keys()
    elif path[0] == "parameters":
        what, known = "a parameter", Parameter.model_fields.keys()
    else:
        above = next((part for part in reversed(path[:-1]) if isinstance(part, str)), "")
        what, part = _PARTS[above]
        known = part.model_fields.keys()
    otherwise = _CALLED_OTHERWISE.get(str(name))
    if otherwise in known and nearest(name, known) is None:
        suggestion = f"did you mean {otherwise}?"
    else:
        suggestion = did_you_mean(name, known)
    return Finding(path, f"is not a field of {what}", value, suggestion)


def _derivation(path: Path, value: object) -> Finding:
    if isinstance(value, dict) and len(value) == 1:
        name, inner = next(iter(value.items()))
        if name == "regex":
            said = (
                "must be text" if not isinstance(inner, str) else "must have 1 to 1,000 characters"
            )
            return Finding((*path, name), said, inner, "such as {regex: '([0-9]+)'}")
        if name == "date_part":
            known = DatePart.model_json_schema()["properties"]["date_part"]["enum"]
            return Finding((*path, name), f"must be {_one_of(known)}", inner, _near(inner, known))
        known = [*Regex.model_fields, *DatePart.model_fields]
        return Finding((*path, name), "is not a derivation", inner, did_you_mean(name, known))
    near = nearest(value, _DERIVATIONS)
    return Finding(path, "is not a derivation", value,
                   f"did you mean {near}?" if near else f"one of {_all(_DERIVATIONS)}")  # fmt: skip


def _remedy(kind: str, path: Path, value: object) -> str:
    if kind == "string_type" and value is not None and not isinstance(value, dict | list):
        return f'put it in quotes: "{value}"'
    if kind == "string_pattern_mismatch":
        return "store it as a secret and write secret://name"
    if kind == "tuple_type" and isinstance(value, str):
        return f"write [{value}]"
    if kind in ("missing", "too_short", "string_too_short", "model_type", "dict_type"):
        return _missing(path)
    if kind == "string_too_long" and path == ("match_sql",):
        return "keep long lists of values in a source, or in its filters"
    if kind.startswith("int_") and kind != "int_parsing_size":
        return "such as 3"
    if kind.startswith("bool_"):
        return "write true or false"
    if kind == "decimal_parsing" and isinstance(value, str) and "," in value:
        return "write a point before the decimals, and nothing between thousands"
    if kind in ("greater_than_equal", "less_than_equal"):
        return _EXAMPLES.get(str(path[-1]), "")
    return "such as 0.01" if kind.startswith("decimal_p") or kind == "decimal_type" else ""


def _missing(path: Path) -> str:
    """What to write for a missing value."""
    if path[:1] == ("parameters",):
        return "such as {type: number, default: 0.01}"
    if path[-1] in SIDES:
        return _EXAMPLES["source" if path[-2:-1] == ("sources",) else "column"]
    return _EXAMPLES.get(str(path[-1]), "")


def _near(value: object, known: list[str]) -> str:
    found = nearest(value, known)
    return f"did you mean {found}?" if found else ""


def _one_of(known: list[str]) -> str:
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"


def _all(known: Any) -> str:
    return ", ".join(known)


def _at(document: object, path: Path) -> object:
    for part in path:
        document = document[part]  # type: ignore[index]  # the path came from this document
    return document

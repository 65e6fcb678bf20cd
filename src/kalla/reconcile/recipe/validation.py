"""Validates a recipe with a correct structure, by itself and against its sources' columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from decimal import Context, Decimal
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from kalla.pattern_size import ExpressionBudget
from kalla.reconcile.recipe import column_checks, csv_dialect, duckdb_checks
from kalla.reconcile.recipe.column_checks import Columns
from kalla.reconcile.recipe.model import (
    BOUNDS,
    DATABASES,
    SIDES,
    Condition,
    DatePart,
    DateWindow,
    Filter,
    Fuzzy,
    Recipe,
    Regex,
    Rule,
    Side,
    Source,
    Text,
    Tolerance,
)
from kalla.reconcile.recipe.recipe_problems import Finding, Path, RecipeProblem, nearest
from kalla.redaction import is_secret_name, secrets_in

_SCHEMES = ("file", "s3", "postgresql", "postgres", "source")
_MOST_DIGITS, _MOST_PLACES = 28, 9  # before the point and after it
_MOST_PERCENT = 9  # digits before the point
_MOST_DERIVATIONS = 20
_LOOKS_AROUND = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?:[=!]|<[=!])")
_LOOKS_BACK = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?P=)")


def check(recipe: Recipe, columns: Mapping[Side, Columns] | None = None) -> list[RecipeProblem]:
    """Every problem of a recipe with a correct structure; with `columns`, also of its columns."""
    return [each.problem() for each in findings(recipe, columns)]


def check_source(source: Source) -> list[RecipeProblem]:
    """Every problem of a source by itself."""
    return [each.problem() for each in _source(source, ())]


def findings(
    recipe: Recipe,
    columns: Mapping[Side, Columns] | None = None,
    altered: Collection[int] = (),
) -> Iterator[Finding]:
    """For rules that error recovery changed (`altered`, by number), checks only their parts."""
    yield from _whole(recipe)
    for side in SIDES:
        yield from _source(recipe.sources[side], ("sources", side))
    expressions = ExpressionBudget()
    for index, rule in enumerate(recipe.rules):
        yield from _parts(rule, ("rules", index), expressions)
        if index not in altered:
            yield from _rule(rule, ("rules", index))
    if columns is not None:
        yield from column_checks.findings(recipe, columns)


def word_of(type_: str) -> str:
    """DuckDB's type as a simple name: text, integer, decimal, float, date, …"""
    for heads, word in (
        (("VARCHAR", "ENUM", "UUID", "JSON"), "text"),
        (("DECIMAL",), "decimal"),
        (("FLOAT", "DOUBLE"), "float"),
        (("DATE",), "date"),
        (("TIMESTAMP",), "timestamp"),
        (("BOOLEAN",), "boolean"),
    ):
        if type_.startswith(heads) and not type_.endswith("]"):
            return word
    return "integer" if re.fullmatch(r"U?(TINY|SMALL|BIG)?INT(EGER)?", type_) else "other"


def _whole(recipe: Recipe) -> Iterator[Finding]:
    if recipe.rules and recipe.match_sql is not None:
        yield Finding(("match_sql",), "cannot be combined with rules", recipe.match_sql,
                      "keep one of them")  # fmt: skip
    if not recipe.rules and recipe.match_sql is None:
        yield Finding(("rules",), "are missing: the recipe does not define a match",
                      suggestion="write rules, or match_sql")  # fmt: skip
    if recipe.match_sql is not None and not recipe.match_sql.strip():
        yield Finding(("match_sql",), "is empty", recipe.match_sql,
                      "write SELECT … FROM left_src l JOIN right_src r ON …")  # fmt: skip
    yield from _repeats([rule.name for rule in recipe.rules], ("rules",), "name")
    if not _is_time_zone(recipe.time_zone):
        near = nearest(recipe.time_zone, available_timezones() - {"localtime"})
        yield Finding(("time_zone",), "is not a time zone", recipe.time_zone,
                      f"did you mean {near}?" if near else "such as Europe/Paris")  # fmt: skip
    left, right = recipe.sources.left.currency, recipe.sources.right.currency
    if (left is None) != (right is None):
        side = "left" if left is None else "right"
        yield Finding(("sources", side, "currency"), "is missing, but the other side names one",
                      suggestion="name it on both sides, or on neither")  # fmt: skip


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return bool(name) and duckdb_checks.knows_time_zone(name)


def _repeats(names: list[str], path: Path, field: str | None = None) -> Iterator[Finding]:
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        if seen[name]:
            place = (*path, index, field) if field else (*path, index)
            yield Finding(place, "is given twice", name, "each must be another")
        seen[name] += 1


def _source(source: Source, path: Path) -> Iterator[Finding]:
    yield from _uri(source, path)
    yield from _date_format(source.csv.date_format, (*path, "csv", "date_format"))
    yield from _repeats(list(source.primary_key), (*path, "primary_key"))
    yield from _repeats(list(source.show or ()), (*path, "show"))
    yield from _filters(source.filters, (*path, "filters"))
    yield from csv_dialect.findings(source.csv, (*path, "csv"))


def _uri(source: Source, path: Path) -> Iterator[Finding]:
    uri, place = source.uri, (*path, "uri")
    scheme = scheme_of(uri)
    if scheme is not None and scheme not in _SCHEMES:
        near = nearest(scheme, _SCHEMES)
        known = "a path, " + ", ".join(f"{each}://" for each in _SCHEMES)
        yield Finding(place, f"begins with {scheme}://, which is not a kind of source", uri,
                      f"did you mean {near}://?" if near else f"known: {known}")  # fmt: skip
        return
    if _holds_password(uri):
        yield Finding(place, "holds a password", uri,
                      "store it as a secret and write password: secret://name")  # fmt: skip
        return
    if scheme is not None and not _is_address(uri):
        yield Finding(place, "is not an address: its host cannot be read", uri,
                      "brackets stand around an IPv6 address alone, as in [::1]")  # fmt: skip
        return
    database = source.format == "postgres" or scheme in DATABASES
    if database and scheme not in (*DATABASES, "source"):
        yield Finding(place, "is not the address of a database", uri,
                      "such as postgresql://host/database")  # fmt: skip
    elif scheme in DATABASES and source.format not in (None, "postgres"):
        yield Finding((*path, "format"), "does not fit the uri, which is a database's",
                      source.format, "leave it out")  # fmt: skip
    elif scheme in DATABASES and source.table is None:
        yield Finding((*path, "table"), "is missing: a database holds many",
                      suggestion="such as public.invoices")  # fmt: skip
    elif scheme == "source" and not uri.removeprefix("source://").strip("/"):
        yield Finding(place, "names no source", uri, "write source://NAME")


def _date_format(given: str | None, path: Path) -> Iterator[Finding]:
    if given is not None and (reason := duckdb_checks.date_format_fault(given)):
        meant = duckdb_checks.meant_date_format(given)
        yield Finding(path, f"is not a date format: {reason}", given,
                      f"did you mean {meant}?" if meant else "such as %d.%m.%Y")  # fmt: skip


def scheme_of(uri: str) -> str | None:
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", uri)
    return found[1].lower() if found else None


def _is_address(uri: str) -> bool:
    try:
        urlsplit(uri)
    except ValueError:
        return False
    return True


def _holds_password(uri: str) -> bool:
    if "secret://" in uri or next(secrets_in(uri), None) is not None:
        return True
    try:
        query = parse_qsl(urlsplit(uri).query)
    except ValueError:
        return False
    return any(is_secret_name(name) and value for name, value in query)


def _filters(filters: tuple[Filter, ...], path: Path) -> Iterator[Finding]:
    for index, each in enumerate(filters):
        place, value = (*path, index, "value"), each.value
        if each.op in ("is_null", "not_null"):
            if value is not None:
                yield Finding(place, f"must be left out with `{each.op}`", value,
                              "use `eq` to compare with it")  # fmt: skip
        elif each.op in ("in", "not_in"):
            if not isinstance(value, tuple) or not value:
                yield Finding(place, f"must be a list with `{each.op}`", value, "such as [A, B]")
        elif isinstance(value, tuple):
            yield Finding(place, f"must be one value with `{each.op}`", value,
                          "use `in` for a list")  # fmt: skip
        elif value is None:
            yield Finding(place, f"is missing: `{each.op}` compares with it",
                          suggestion="use is_null to find what has no value")  # fmt: skip
        elif each.op in ("contains", "startswith", "endswith") and not isinstance(value, str):
            yield Finding(place, f"must be text with `{each.op}`", value,
                          f'put it in quotes: "{value}"')  # fmt: skip
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, int | Decimal) and (excess := _excess(Decimal(item), _MOST_DIGITS)):
                yield Finding(place, excess, item, "put it in quotes if it is not an amount")
                break


def _excess(amount: Decimal, most: int) -> str:
    """The part of an amount with too many digits."""
    exponent = amount.normalize(Context(prec=200)).as_tuple().exponent
    if isinstance(exponent, int) and -exponent > _MOST_PLACES:
        return f"must not have more than {_MOST_PLACES} digits after the point"
    too_many = amount.adjusted() >= most
    return f"must not have more than {most} digits before the point" if too_many else ""


def _parts(rule: Rule, path: Path, expressions: ExpressionBudget) -> Iterator[Finding]:
    for index, condition in enumerate(rule.conditions):
        place = (*path, "conditions", index)
        yield from _condition(condition, place)
        yield from _derivations(condition, place, expressions)
    for side in SIDES:
        yield from _filters(rule.filters(side), (*path, f"{side}_filters"))


def _rule(rule: Rule, path: Path) -> Iterator[Finding]:
    yield from _sums(rule, path)
    if rule.ties == "first_in_first_out":
        if rule.cardinality != "1:1":
            yield Finding((*path, "ties"), "is for the cardinality 1:1 alone", rule.ties,
                          f"leave it out with {rule.cardinality}")  # fmt: skip
        for name, column in (("left_order", rule.left_order), ("right_order", rule.right_order)):
            if column is None:
                yield Finding((*path, name), "is missing: it says which row came first",
                              suggestion="name the column with the date")  # fmt: skip


def _sums(rule: Rule, path: Path) -> Iterator[Finding]:
    sums = {"left_sum": rule.left_sum, "right_sum": rule.right_sum}
    given = [name for name, column in sums.items() if column is not None]
    for name in given:
        if rule.cardinality == "1:1":
            yield Finding((*path, name), "sums nothing: the cardinality is 1:1", sums[name],
                          "use 1:N, N:1 or M:N")  # fmt: skip
        elif rule.tolerance is None:
            yield Finding((*path, name), "needs a tolerance that says how far sums may differ",
                          sums[name], "add a condition with `op: tolerance`")  # fmt: skip
    if len(given) == 1:
        other = "right_sum" if given == ["left_sum"] else "left_sum"
        yield Finding((*path, other), f"is missing: it is compared with {given[0]}",
                      suggestion="name the column that is summed on that side")  # fmt: skip


def _condition(condition: Condition, path: Path) -> Iterator[Finding]:
    if isinstance(condition, Tolerance):
        yield from _bounds(condition, path)
    elif isinstance(condition, DateWindow):
        both = (condition.before, condition.after) != (None, None)
        if condition.days is None and not both:
            yield Finding((*path, "days"), "is missing: it says how far dates may be apart",
                          suggestion="such as days: 3, or before and after")  # fmt: skip
        elif condition.days is not None and both:
            yield Finding((*path, "days"), "already says what before and after say",
                          condition.days, "keep one of them")  # fmt: skip
    elif isinstance(condition, Fuzzy):
        exponent = condition.threshold.normalize().as_tuple().exponent
        if isinstance(exponent, int) and exponent < -4:
            yield Finding((*path, "threshold"), "must not have more than 4 decimals",
                          condition.threshold, f"such as {condition.threshold:.4f}")  # fmt: skip


def _derivations(
    condition: Condition, path: Path, expressions: ExpressionBudget
) -> Iterator[Finding]:
    for name in ("derive", "derive_left", "derive_right"):
        derivations = getattr(condition, name)
        if len(derivations) > _MOST_DERIVATIONS:
            yield Finding((*path, name), f"must not have more than {_MOST_DERIVATIONS} entries",
                          len(derivations), "put several into one {regex: …}")  # fmt: skip
            continue
        for index, derivation in enumerate(derivations):
            place = (*path, name, index)
            if isinstance(derivation, Regex):
                yield from _expression(derivation.regex, (*place, "regex"), expressions)
            elif isinstance(derivation, DatePart) and isinstance(
                condition, Tolerance | Text | Fuzzy
            ):
                yield Finding((*place, "date_part"), "makes a date, which this cannot compare",
                              derivation.date_part, "use it with eq or date_window")  # fmt: skip


def _bounds(tolerance: Tolerance, path: Path) -> Iterator[Finding]:
    """Exactly one kind of bound in each direction."""
    given = {
        name: getattr(tolerance, name) for name in BOUNDS if getattr(tolerance, name) is not None
    }
    if not given:
        yield Finding(path, "has no bound", f"{tolerance.left} tolerance {tolerance.right}",
                      "such as absolute: 0.01, or percent: 1")  # fmt: skip
        return
    for name, amount in given.items():
        most = _MOST_PERCENT if name.endswith("percent") else _MOST_DIGITS
        if excess := _excess(amount, most):
            yield Finding((*path, name), excess, amount, "such as 0.01")
    reported: set[str] = set()
    for direction in ("below", "above"):
        kinds = [name for name in given if not name.startswith(("below", "above"))]
        kinds += [name for name in given if name.startswith(direction)]
        if not kinds:
            yield Finding((*path, direction), "is missing: every direction needs a bound",
                          suggestion=f"{direction}: 0 allows none")  # fmt: skip
        elif len(kinds) > 1 and kinds[-1] not in reported:
            reported.add(kinds[-1])
            yield Finding((*path, kinds[-1]), f"and {kinds[0]} bound the same direction",
                          given[kinds[-1]], "keep one of them")  # fmt: skip


def _expression(pattern: str, path: Path, expressions: ExpressionBudget) -> Iterator[Finding]:
    if _LOOKS_AROUND.search(pattern):
        yield Finding(path, "looks ahead or behind, which these expressions cannot", pattern,
                      "put the wanted part into a group: (…)")  # fmt: skip
    elif _LOOKS_BACK.search(pattern):
        yield Finding(path, "refers back to a group, which these expressions cannot", pattern,
                      "write the repeated part out")  # fmt: skip
    elif refusal := expressions.refusal(pattern):
        yield Finding(path, f"would take too long to compile: {refusal}", pattern,
                      "repeat less, and name the characters instead of \\pL")  # fmt: skip
    elif reason := duckdb_checks.expression_fault(pattern):
        yield Finding(path, f"is not a regular expression: {reason}", pattern,
                      "a backslash before a special character matches it literally")  # fmt: skip

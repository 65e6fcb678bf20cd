"""Parses and checks recipes that callers send for the library.

A recipe may leave parameters without a value: only a run needs them.
Reading a long text takes seconds: none of this belongs on the event loop.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe import (
    error_recovery,
    legacy_formats,
    parameter_values,
    parsing,
    yaml_values,
)
from kalla.reconcile.recipe.column_checks import Columns
from kalla.reconcile.recipe.model import SIDES, Recipe, Side, Source
from kalla.reconcile.recipe.parsing import ColumnLookup
from kalla.reconcile.recipe.recipe_problems import Path, RecipeProblem, leaves, spelled
from kalla.reconcile.registry import admission
from kalla.reconcile.registry.admission import Known
from kalla.redaction import scrub_value, secrets_in

_NOTHING: Mapping[str, str] = MappingProxyType({})
_STANDING_FOR = {"number": "1", "date": "2000-01-01", "text": "text"}
_LONGEST_SLUG = 80
_LARGEST_BODY = 4 * yaml_values.LARGEST_BYTES  # a text in JSON is longer than the text
_REFERENCE = "source://"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_RESERVED = ("schema", "validate")  # addresses below /api/recipes


@dataclass(frozen=True)
class Sent:
    """The contents of a request's body: a recipe's text, and values for its parameters."""

    text: str
    given: Mapping[str, str]


@dataclass(frozen=True)
class Named:
    """A recipe's name and id; whether the recipe contains the id."""

    name: str
    recipe_id: str
    is_own: bool


@dataclass(frozen=True)
class _Unfilled:
    """Placeholders for parameters without a value, and the places and columns that cannot be
    checked with them.
    """

    needs: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    hidden: tuple[Side, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """Every problem of a recipe; `recipe` is set if none was found.

    `needs` are the parameters that a run must give a value; `recipe` holds made-up ones for them.
    """

    recipe: Recipe | None
    problems: tuple[RecipeProblem, ...] = ()
    needs: tuple[str, ...] = ()


class RequestedColumns:
    """Records which columns a check needs, so that they can be read outside of it."""

    recipe: Recipe | None = None
    sides: Collection[Side] = ()

    def __call__(self, recipe: Recipe, sides: Collection[Side]) -> Mapping[Side, Columns]:
        self.recipe, self.sides = recipe, sides
        return {}


def sent(body: bytes) -> Sent:
    """A body is the recipe itself, as YAML or JSON, or JSON with the fields recipe, parameters."""
    text = body.decode("utf-8", "surrogateescape")
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return Sent(normal(text), _NOTHING)
    parsed = yaml_values.parse(text, _LARGEST_BODY)
    fields = parsed.value
    if not isinstance(fields, dict) or not {"recipe"} <= fields.keys() <= {"recipe", "parameters"}:
        return Sent(normal(text), _NOTHING)
    return _unwrapped(parsed)


def submitted(body: bytes) -> Sent:
    """What the fields recipe and parameters of a JSON body hold, with every digit of the amounts;
    the text is empty where there is no recipe.
    """
    # Who reads JSON may take UTF-16 for it as well: what is not UTF-8 is refused by our parser.
    return _unwrapped(yaml_values.parse(body.decode("utf-8", "surrogateescape"), _LARGEST_BODY))


def judge(
    text: str,
    given: Mapping[str, str] = _NOTHING,
    columns: ColumnLookup | None = None,
) -> Judgement:
    """Read a recipe, with placeholders for parameters without a value."""
    try:
        return Judgement(parsing.read(text, given, columns=columns))
    except InvalidInput as error:
        first = problems_of(error)
    unfilled = _unfilled(text, given)
    needs = unfilled.needs
    if not needs:
        return Judgement(None, first)
    seen = columns and _but(columns, unfilled.hidden)
    try:
        recipe = parsing.read(text, {**given, **needs}, columns=seen)
    except InvalidInput as error:
        # A placeholder cannot be checked.
        left = tuple(each for each in problems_of(error) if not _is_at(each.field, unfilled.places))
        return Judgement(None, left, tuple(needs))
    return Judgement(recipe, (), tuple(needs))


def judge_with_sources(
    text: str,
    known: Known,
    given: Mapping[str, str] = _NOTHING,
    columns: ColumnLookup | None = None,
    uris: Mapping[str, str] = _NOTHING,
) -> Judgement:
    """The same, with the registered sources filled in, and whether the library can keep it. Sources
    replaced by other uris are not checked.
    """
    found = admission.resolved(text, known, given, uris)
    judgement = judge(found.text, given, columns)
    problems = [*_recipe_problems(found.problems), *judgement.problems]
    places = {each.field for each in problems}
    problems += (each for each in _unkeepable(text) if each.field not in places)
    if not problems and _holds_secret(text):
        reason = "the document holds a secret in the clear"
        remedy = "store it with `kalla secret set` and write secret://name"
        problems = [RecipeProblem("", reason, suggestion=remedy)]
    recipe = None if problems else judgement.recipe
    return replace(judgement, recipe=recipe, problems=tuple(problems))


def ready(
    text: str,
    known: Known,
    given: Mapping[str, str],
    uris: Mapping[str, str],
    columns: ColumnLookup | None = None,
) -> Recipe:
    """The recipe of a text as it is run: parameters, uris and registered sources filled in."""
    found = admission.resolved(text, known, given, uris)
    try:
        recipe = parsing.read(found.text, given, columns=columns)
    except InvalidInput as error:
        raise InvalidInput(*_recipe_problems(found.problems), *error.problems) from None
    if found.problems:
        raise InvalidInput(*_recipe_problems(found.problems))
    return recipe


def problems_of(error: InvalidInput) -> tuple[RecipeProblem, ...]:
    return _recipe_problems(error.problems)


def named(text: str) -> Named:
    """The id of a checked recipe; made of its name if it has no `recipe_id`."""
    value = yaml_values.parse(text).value
    document = legacy_formats.modernise(value).document if isinstance(value, dict) else {}
    name, own = str(document.get("name", "")), document.get("recipe_id")
    return Named(name, str(own or slug(name)), bool(own))


def name_problems(name: str, field: str = "name") -> Iterator[RecipeProblem]:
    """The problems of a name in the library."""
    if not _NAME.fullmatch(name):
        message = "must have 1 to 100 letters, digits, _ . or -, and begin with a letter or a digit"
        yield RecipeProblem(field, message, name, "such as may-2026")


def normal(text: str) -> str:
    """Normalized text: versions are compared by it."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def slug(name: str) -> str:
    """`Invoices & payments` is `invoices-payments`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    found = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_LONGEST_SLUG].strip("-")
    return found or f"recipe-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _holds_secret(text: str) -> bool:
    """In the text, comments too, or in its values: what JSON escapes is not a secret as a text."""
    values = (leaf for _, leaf in leaves(yaml_values.parse(text).value))
    return any(next(secrets_in(each), None) is not None for each in (text, *values))


def _unkeepable(text: str) -> Iterator[RecipeProblem]:
    """Reasons why a valid recipe cannot be saved."""
    try:
        value, kept = yaml_values.parse(text).value, named(text)
    except InvalidInput:
        return  # reported by its parser
    for path, leaf in leaves(value):
        if isinstance(leaf, str) and "\0" in leaf:
            yield RecipeProblem(spelled(path), "holds a NUL, which cannot be stored",
                                suggestion="leave it out")  # fmt: skip
    if kept.is_own:
        yield from name_problems(kept.recipe_id, "recipe_id")
    if kept.recipe_id in _RESERVED:
        yield RecipeProblem(
            "recipe_id",
            f"cannot be {kept.recipe_id}, which is an address of its own",
            kept.recipe_id,
            f"such as {kept.recipe_id}-1",
        )


def _recipe_problems(problems: Iterable[Problem]) -> tuple[RecipeProblem, ...]:
    return tuple(RecipeProblem.of(each) for each in problems)


def _unwrapped(parsed: yaml_values.Parsed) -> Sent:
    if parsed.findings:
        raise InvalidInput(*(each.problem() for each in parsed.findings))
    fields = parsed.value if isinstance(parsed.value, dict) else {}
    recipe = fields.get("recipe", "")
    return Sent(
        normal(recipe if isinstance(recipe, str) else yaml_values.write(recipe)),
        _values(fields.get("parameters", {})),
    )


def _values(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise InvalidInput(
            RecipeProblem(
                "parameters",
                "must be names and their values",
                scrub_value(given),
                'such as {"month": "2026-01"}',
            )
        )
    wrong = [
        RecipeProblem(f"parameters.{name}", *_fault(value, scrub_value(value, name)))
        for name, value in given.items()
        if value is None or isinstance(value, dict | list | bool)
    ]
    if wrong:
        raise InvalidInput(*wrong)
    return {name: str(value) for name, value in given.items()}


def _fault(value: object, shown: object) -> tuple[str, object, str]:
    if isinstance(value, bool):
        word = "true" if value else "false"
        return "must not be true or false", shown, f'put it in quotes if it is a text: "{word}"'
    return "must be one value", shown, "such as 0.01"


def _unfilled(text: str, given: Mapping[str, str]) -> _Unfilled:
    try:
        value = yaml_values.parse(text).value
    except InvalidInput:
        return _Unfilled()
    if not isinstance(value, dict):
        return _Unfilled()
    modern = legacy_formats.modernise(value)
    declared = modern.document.get("parameters")
    needs = {}
    for name, fields in declared.items() if isinstance(declared, dict) else ():
        if not isinstance(fields, dict) or name in given or fields.get("default") is not None:
            continue
        kind = fields.get("type", "text")
        if isinstance(kind, str) and kind in _STANDING_FOR:
            needs[name] = _STANDING_FOR[kind]
    unfilled = (
        parameter_values.fill(modern.document, given).unfilled
        - parameter_values.fill(modern.document, {**given, **needs}).unfilled
    )
    return _Unfilled(
        needs,
        (
            *(spelled(modern.place(path)) for path in unfilled),
            *(spelled(path) for path in _left_to_register(modern.document, unfilled)),
        ),
        tuple(side for side in SIDES if any(error_recovery.hides(path, side) for path in unfilled)),
    )


def _left_to_register(document: Mapping[str, object], unfilled: Collection[Path]) -> Iterator[Path]:
    """Fields that a source lacks may be registered under a name that is not known."""
    sources = document.get("sources")
    for side in SIDES:
        fields = sources.get(side) if isinstance(sources, dict) else None
        if ("sources", side, "uri") in unfilled and isinstance(fields, dict):
            begins = str(fields["uri"]).lower().partition("${")[0]
            if begins.startswith(_REFERENCE) or _REFERENCE.startswith(begins):
                unsaid = Source.model_fields.keys() - fields.keys()
                yield from (("sources", side, name) for name in unsaid)


def _but(columns: ColumnLookup, hidden: Collection[Side]) -> ColumnLookup:
    return lambda recipe, sides: columns(recipe, [side for side in sides if side not in hidden])


def _is_at(field: str, places: Iterable[str]) -> bool:
    return any(field == place or field.startswith((f"{place}.", f"{place}[")) for place in places)

"""Stores what runs refer to by name: registered sources, saved recipes, destinations of callbacks.

Typed rows over `entries.sql`. `admission` and `destinations` decide what they allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput, NotFound, Problem
from kalla.reconcile.recipe import parsing, yaml_values
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.recipe.parsing import ColumnLookup
from kalla.reconcile.registry import admission, destinations, drafts
from kalla.reconcile.registry.admission import Known, SourceDocument, source_problems
from kalla.reconcile.registry.drafts import Named
from kalla.secrets import valid_name
from kalla.statements import load

sql = load("kalla.reconcile.registry", "entries.sql")

LARGEST_SOURCE = 64 * 1024

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class RegisteredSource:
    """A source that recipes may use."""

    name: str
    source: SourceDocument
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True)
class RecipeSummary:
    """A version of a recipe in a list."""

    recipe_id: str
    version: int
    name: str
    hash: str
    created_at: datetime
    created_by: str


@dataclass(frozen=True)
class RecipeVersion(RecipeSummary):
    """One version, with its text as it was saved."""

    text: str


@dataclass(frozen=True)
class SavedRecipe(RecipeVersion):
    """The saved recipe. `repeated`: the latest version has the same text and stays."""

    repeated: bool
    notes: tuple[str, ...] = ()  # on sources that could not be read


@dataclass(frozen=True)
class Destination:
    """An address that callbacks may go to, and the name of the secret that signs them."""

    name: str
    url: str
    secret: str
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


async def prepare(
    text: str,
    known: Known,
    given: Mapping[str, str],
    uris: Mapping[str, str],
    columns: ColumnLookup | None = None,
) -> Recipe:
    """The recipe of a text, ready to run: parameters and sources filled in, its places allowed.

    Without a connection: resolving links can take longer than a transaction may be idle.
    """

    def prepared() -> Recipe:
        recipe = admission.admit(drafts.ready(text, known, given, uris, columns), known)
        parsing.refuse_large(recipe)  # what is registered may be long
        return recipe

    return await asyncio.to_thread(prepared)


async def register_source(
    connection: Connection, name: str, source: SourceDocument, by: str, replace: bool = False
) -> RegisteredSource:
    """Let recipes use a source. A name that is taken is a conflict, unless it is to be replaced."""
    document = await asyncio.to_thread(_fit_to_register, name, source)
    statement = sql.replace_source if replace else sql.add_source
    row = await _one(connection, statement, name=name, document=document, by=by)
    if row is None:
        raise Conflict(f"there is a source {name!r} already: use replace, or choose another name")
    if replace:
        await connection.execute(sql.release_uploads)
    return await asyncio.to_thread(_registered, row)


async def sources(connection: Connection) -> list[RegisteredSource]:
    """Every registered source, by name."""
    rows = await _all(connection, sql.sources)
    return await asyncio.to_thread(lambda: [_registered(row) for row in rows])


async def known_sources(connection: Connection) -> dict[str, SourceDocument]:
    """The sources that recipes may name: uploads that have not expired, and registered ones."""
    found = await _all(connection, sql.current_uploads)
    uploads = {
        f"upload-{row['upload_id']}": SourceDocument(
            uri=row["url"], alias=row["file_name"].partition(".")[0] or None
        )
        for row in found
    }
    return uploads | {each.name: each.source for each in await sources(connection)}


async def upload_names(connection: Connection) -> dict[str, str]:
    """The users' names of uploaded files, by their names in recipes."""
    found = await _all(connection, sql.current_uploads)
    return {f"upload-{row['upload_id']}": row["file_name"] for row in found}


async def secret_names(connection: Connection) -> list[str]:
    """The names of secrets in the encrypted store; never their values."""
    return [row["name"] for row in await _all(connection, sql.secret_names)]


async def source(connection: Connection, name: str) -> RegisteredSource:
    row = await _one(connection, sql.source, name=name)
    if row is None and (found := await _one(connection, sql.upload_as_source, name=name)):
        return RegisteredSource(source=SourceDocument(uri=found.pop("url")), **found)
    if row is None:
        raise await _missing_source(connection, name)
    return await asyncio.to_thread(_registered, row)


async def remove_source(connection: Connection, name: str) -> RegisteredSource:
    """Recipes can no longer use it; running runs continue."""
    row = await _one(connection, sql.remove_source, name=name)
    if row is None:
        raise await _missing_source(connection, name)
    await connection.execute(sql.release_uploads)
    return await asyncio.to_thread(_registered, row)


async def be_patient(connection: Connection) -> None:
    """Allows a transaction to be idle for longer, while a recipe is read."""
    await connection.execute(sql.be_patient)


async def save_recipe(
    connection: Connection,
    text: str,
    by: str,
    columns: ColumnLookup | None = None,
    uris: Mapping[str, str] = _NOTHING,
) -> SavedRecipe:
    """Keep a recipe under its id: as a new version, unless the latest has the same text.

    Going back to an earlier text makes a new version too: the latest one is what counts. A recipe
    run with other `uris` may have none, or outdated ones.
    """
    known = await known_sources(connection)
    await be_patient(connection)
    text, kept, digest = await asyncio.to_thread(_fit_to_save, text, known, columns, uris)
    await connection.execute(sql.serialise_recipe, {"recipe_id": kept.recipe_id})
    latest = await _one(connection, sql.latest_recipe, recipe_id=kept.recipe_id)
    if latest is not None and latest["hash"] == digest:
        return SavedRecipe(**latest, repeated=True)
    if latest is not None and latest["name"] != kept.name and not kept.is_own:
        raise _same_id(kept, latest["name"])
    (row,) = await _all(
        connection,
        sql.add_recipe,
        recipe_id=kept.recipe_id,
        version=latest["version"] + 1 if latest else 1,
        name=kept.name,
        text=text,
        hash=digest,
        by=by,
    )
    return SavedRecipe(**row, repeated=False)


async def replaced_version(connection: Connection, text: str) -> RecipeVersion | None:
    """The latest version of a recipe, if saving this valid text would make another one."""
    text = drafts.normal(text)
    recipe_id = (await asyncio.to_thread(drafts.named, text)).recipe_id
    row = await _one(connection, sql.latest_recipe, recipe_id=recipe_id)
    if row is None or row["hash"] == sha256(text.encode()).hexdigest():
        return None
    return RecipeVersion(**row)


async def schedules_of(connection: Connection, recipe_id: str) -> int:
    """How many schedules run the latest version of a recipe."""
    row = await _one(connection, sql.schedules_of, recipe_id=recipe_id)
    return int(row["schedules"]) if row else 0


async def free_name(connection: Connection, name: str) -> str:
    """The name, with a number behind it if the id made of it belongs to a recipe already."""
    number, free = 1, name
    while await _one(connection, sql.latest_recipe, recipe_id=drafts.slug(free)) is not None:
        number += 1
        free = f"{name} {number}"
    return free


async def recipes(
    connection: Connection, after: str | None = None, limit: int = 100
) -> list[RecipeSummary]:
    """The latest version of every recipe, by id."""
    rows = await _all(connection, sql.recipes, after=after, limit=limit)
    return [RecipeSummary(**row) for row in rows]


async def recipe_version(
    connection: Connection, recipe_id: str, version: int | None = None
) -> RecipeVersion:
    """A version, or the latest one."""
    if version is None:
        row = await _one(connection, sql.latest_recipe, recipe_id=recipe_id)
    else:
        row = await _one(connection, sql.recipe, recipe_id=recipe_id, version=version)
    if row is None:
        raise await _missing_recipe(connection, recipe_id, version)
    return RecipeVersion(**row)


async def recipe_versions(connection: Connection, recipe_id: str) -> list[RecipeSummary]:
    """Every version, the newest first; of very many the newest 500."""
    rows = await _all(connection, sql.recipe_versions, recipe_id=recipe_id)
    return [RecipeSummary(**row) for row in rows]


async def add_destination(
    connection: Connection, name: str, url: str, secret: str, by: str, replace: bool = False
) -> Destination:
    """Let callbacks go to an address and to those below it."""
    problems = [*drafts.name_problems(name), *destinations.url_problems(url)]
    try:
        valid_name(secret)
    except InvalidInput as error:
        problems += [Problem("secret", each.message) for each in error.problems]
    if problems:
        raise InvalidInput(*problems)
    statement = sql.replace_destination if replace else sql.add_destination
    row = await _one(connection, statement, name=name, url=url, secret=secret, by=by)
    if row is None:
        raise Conflict(
            f"there is a destination {name!r} already: use replace, or choose another name"
        )
    return Destination(**row)


async def all_destinations(connection: Connection) -> list[Destination]:
    """Every destination, by name."""
    return [Destination(**row) for row in await _all(connection, sql.destinations)]


async def remove_destination(connection: Connection, name: str) -> Destination:
    row = await _one(connection, sql.remove_destination, name=name)
    if row is None:
        known = [each.name for each in await all_destinations(connection)]
        near = _near(name, known, "kalla destinations add")
        raise NotFound(f"there is no destination {name!r}; {near}")
    return Destination(**row)


async def destination_for(connection: Connection, url: str) -> Destination:
    """The destination that covers a callback's address; of several the most specific one."""
    if problems := list(destinations.url_problems(url, query=True)):
        raise InvalidInput(*(Problem("callback_url", each.message) for each in problems))
    found = [
        each for each in await all_destinations(connection) if destinations.covers(each.url, url)
    ]
    if not found:
        raise InvalidInput(
            Problem(
                "callback_url",
                "is not below a registered destination: an admin must run `kalla destinations add "
                "NAME URL --secret NAME`",
            )
        )
    return max(found, key=lambda each: len(each.url.rstrip("/")))


def _fit_to_register(name: str, source: SourceDocument) -> str:
    """The source as it is kept; or every problem of it."""
    problems = [*drafts.name_problems(name), *source_problems(source)]
    if problems:
        raise InvalidInput(*problems)
    document = yaml_values.write(source.fields())
    if len(document.encode()) > LARGEST_SOURCE:
        raise InvalidInput(Problem("source", f"has more than {LARGEST_SOURCE:,} bytes"))
    return document


def _fit_to_save(
    text: str, known: Known, columns: ColumnLookup | None, uris: Mapping[str, str]
) -> tuple[str, Named, str]:
    """The text as it is kept, its name and id, its hash; or every problem of it."""
    text = drafts.normal(text)
    judgement = drafts.judge_with_sources(text, known, columns=columns, uris=uris)
    if judgement.problems:
        raise InvalidInput(*judgement.problems)
    return text, drafts.named(text), sha256(text.encode()).hexdigest()


def _same_id(kept: Named, latest: str) -> InvalidInput:
    """Different names can give the same id: two recipes would share a history silently."""
    return InvalidInput(
        Problem(
            "recipe_id",
            f"is needed: {kept.recipe_id}, which is made of the name, is the id of {latest!r}",
            suggestion=f"write recipe_id: {kept.recipe_id} for a new version of that one, or "
            "another id",
        )
    )


def _registered(row: dict[str, Any]) -> RegisteredSource:
    document = yaml_values.parse(row.pop("document")).value
    return RegisteredSource(source=SourceDocument.model_validate(document), **row)


async def _missing_source(connection: Connection, name: str) -> NotFound:
    known = [row["name"] for row in await _all(connection, sql.source_names)]
    return NotFound(f"there is no source {name!r}; {_near(name, known, 'kalla sources add')}")


async def _missing_recipe(connection: Connection, recipe_id: str, version: int | None) -> NotFound:
    latest = await _one(connection, sql.latest_recipe, recipe_id=recipe_id)
    if latest is not None:
        return NotFound(
            f"the recipe {recipe_id!r} has no version {version}; the latest is {latest['version']}"
        )
    known = [row["recipe_id"] for row in await _all(connection, sql.recipe_names)]
    near = _near(recipe_id, known, "kalla recipe save")
    return NotFound(f"there is no recipe {recipe_id!r}; {near}")


def _near(name: str, known: list[str], command: str) -> str:
    """The end of a message about an unknown name."""
    if found := get_close_matches(name, known, n=1):
        return f"did you mean {found[0]}?"
    some = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    return f"known: {some}" if known else f"there are none yet: `{command}` makes one"


async def _one(connection: Connection, statement: bytes, **values: Any) -> dict[str, Any] | None:
    return await (await connection.execute(statement, values)).fetchone()


async def _all(connection: Connection, statement: bytes, **values: Any) -> list[dict[str, Any]]:
    return await (await connection.execute(statement, values)).fetchall()

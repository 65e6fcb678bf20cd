"""The columns of a source's files, with the type names that recipe checks use."""

from __future__ import annotations

from kalla.errors import Unavailable
from kalla.reconcile.recipe.column_checks import Unread
from kalla.reconcile.recipe.model import DATABASES, Source
from kalla.reconcile.recipe.validation import scheme_of, word_of
from kalla.reconcile.sources import native_files
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage


def columns_of(
    source: Source,
    *,
    storage: Storage = LOCAL,
    bounds: Bounds | None = None,
) -> dict[str, str]:
    """The columns of a source's files with their types. Unavailable where only the API can read it,
    MissingSource where nothing is there, other InvalidInput where a run could not read it either.

    CSV and JSON have no types: their values are text that is read as what it meets. Of JSON every
    line is read.
    """
    if scheme_of(source.uri) in (*DATABASES, "source"):
        raise Unavailable(
            f"{source.uri} is inspected by the API only: submit the run, or POST the recipe to"
            " /api/recipes/validate"
        )
    seen = native_files.inspect_files(source, storage=storage, bounds=bounds)
    words = {name: word_of(type_) for name, type_ in seen.types.items()}
    return words | {name: Unread(reason) for name, reason in seen.unread.items()}

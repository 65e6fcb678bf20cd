"""Runs repeated trials for an editor: rows are read once while their files stay the same, and the
trial before an edit is cached.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

from kalla.reconcile.propose import row_results, side_tables, trial_match
from kalla.reconcile.propose.trial_match import Sample, Tried
from kalla.reconcile.recipe.model import SIDES, Recipe, Source
from kalla.reconcile.sources import native_files
from kalla.reconcile.sources.formats.converted_files import cache_folder
from kalla.reconcile.sources.source_planning import Resolve, is_staged
from kalla.storage import Storage

_SAMPLES = 6
_RESULTS = 24
_READ_BY = {"uri", "table", "password", "format", "csv", "xlsx"}  # fields of a source
_SECONDS = 600.0  # a database table has no mark that would show a change

Value = TypeVar("Value")


class _Latest(Generic[Value]):
    """The values that were used last, each for a while."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[str, tuple[float, Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get_or_make(self, key: str, make: Callable[[], Value]) -> Value:
        with self._lock:
            made_at, value = self._values.get(key, (0.0, None))
            if value is not None and time.monotonic() - made_at < _SECONDS:
                self._values.move_to_end(key)
                return value
        value = make()
        with self._lock:
            self._values[key] = (time.monotonic(), value)
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


class _HeldSample:
    """A sample whose files are removed when it is no longer used."""

    def __init__(self, make: Callable[[Path], Sample]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="sample-", dir=cache_folder()))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.sample = make(folder)


class TrialCache:
    """Of one process. Another process only takes longer for its first trial."""

    def __init__(self) -> None:
        self._samples = _Latest[_HeldSample](_SAMPLES)
        self._results = _Latest[Tried](_RESULTS)

    def attempt(
        self, recipe: Recipe, before: Recipe | None, *, storage: Storage, resolve: Resolve
    ) -> dict[str, Any]:
        """The matches of a recipe; with an earlier recipe, also the differences if both are tried
        on the same rows and keys.
        """
        identity = _identity(recipe, storage)
        tried = self._tried(recipe, identity, storage, resolve)
        facts = dict(trial_match.as_facts(tried.trial))
        if before is not None and _has_same_rows(before, recipe, storage):
            earlier = self._tried(before, identity, storage, resolve)
            facts["changes"] = row_results.changes(
                earlier.results, tried.results, _renamed(before, recipe)
            )
        return facts

    def _tried(self, recipe: Recipe, identity: str, storage: Storage, resolve: Resolve) -> Tried:
        def draw(folder: Path) -> Sample:
            with side_tables.opened(storage, side_tables.PROFILED) as connection:
                left, right = (
                    side_tables.load(
                        connection,
                        f"{side}_rows",
                        recipe.sources[side],
                        as_said=True,
                        storage=storage,
                        resolve=resolve,
                    )
                    for side in SIDES
                )
                return trial_match.draw_sample(connection, recipe, (left, right), folder)

        def attempt() -> Tried:
            held = self._samples.get_or_make(identity, lambda: _HeldSample(draw))
            return trial_match.try_on_sample(recipe, held.sample, side_tables.PROFILED)

        return self._results.get_or_make(f"{identity} {_digest(recipe.model_dump_json())}", attempt)


def _renamed(before: Recipe, after: Recipe) -> dict[str, str]:
    """Rules that were only renamed: the new name is in the place of the old one."""
    old, new = ([rule.name for rule in recipe.rules] for recipe in (before, after))
    pairs = zip(old, new, strict=False)
    return {one: other for one, other in pairs if one not in new and other not in old}


def _has_same_rows(before: Recipe, after: Recipe, storage: Storage) -> bool:
    """Whether the results of both can be compared row by row."""
    keys = [
        [(recipe.sources[side].primary_key, recipe.sources[side].filters) for side in SIDES]
        for recipe in (before, after)
    ]
    return keys[0] == keys[1] and _identity(before, storage) == _identity(after, storage)


def _identity(recipe: Recipe, storage: Storage) -> str:
    """The rows that a recipe is tried on."""
    key = trial_match.sample_key(recipe)
    parts = [key.model_dump_json() if key else "no key"]
    for side in SIDES:
        source = recipe.sources[side]
        parts.append(source.model_dump_json(include=_READ_BY))
        if not is_staged(source):
            parts += (repr(file) for file in _files(source, storage))
    return _digest("\n".join(parts))


def _files(source: Source, storage: Storage) -> list[Any]:
    with native_files.problems_at("", "uri"):
        return list(storage.files(source.uri))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

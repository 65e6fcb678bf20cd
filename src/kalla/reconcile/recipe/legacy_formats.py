"""Converts the two older JSON formats of a recipe into the current one.

Every moved part keeps the path it came from, so that problems name the user's own fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from kalla.reconcile.recipe.recipe_problems import Finding, Path, did_you_mean

CARDINALITIES = {
    name: cardinality
    for cardinality, names in {
        "1:1": ("1:1", "one_to_one"),
        "1:N": ("1:n", "1:m", "1:many", "one_to_many"),
        "N:1": ("n:1", "m:1", "many:1", "many_to_one"),
        "M:N": ("m:n", "n:m", "n:n", "many:many", "many_to_many"),
    }.items()
    for name in names
}
FORMATS = {
    "csv": "csv", "parquet": "parquet", "delta": "delta", "file": None,
    "json": "json", "jsonl": "json", "ndjson": "json",
    "postgres": "postgres", "postgresql": "postgres",
}  # fmt: skip
CONDITION_OPS = (
    "eq", "tolerance", "gt", "lt", "gte", "lte", "contains", "startswith", "endswith", "fuzzy",
)  # fmt: skip
FILTER_OPS = {
    name: op
    for op, names in {
        "eq": ("eq", "=", "==", "equals"),
        "ne": ("ne", "neq", "!=", "<>", "not_equals"),
        "lt": ("lt", "<"),
        "lte": ("lte", "<=", "le"),
        "gt": ("gt", ">"),
        "gte": ("gte", ">=", "ge"),
        "in": ("in",),
        "not_in": ("not_in", "not in", "nin"),
        "contains": ("contains",),
        "startswith": ("startswith", "starts_with"),
        "endswith": ("endswith", "ends_with"),
        "is_null": ("is_null", "is null", "null"),
        "not_null": ("not_null", "is_not_null", "is not null", "not null"),
        "between": ("between",),
        "like": ("like",),
    }.items()
    for name in names
}

_DOCUMENT = (
    "version", "recipe_id", "name", "description", "sources", "match_rules", "match_sql",
    "output", "parameters",
)  # fmt: skip
_SOURCE = ("alias", "type", "uri", "primary_key", "filters", "table", "password")
_RULE = ("name", "pattern", "conditions", "priority")
_CONDITION = ("left", "op", "right", "threshold")
_FILTER = ("column", "op", "value")
_MOST_UNKNOWN = 50  # of one part: a suggestion for each of many thousand would take minutes
_DATABASES = ("postgres", "postgresql")


@dataclass
class Modern:
    """A document in the present shape; `findings` have the paths of the document as it was."""

    document: dict[str, object]
    origins: dict[Path, Path] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def place(self, path: Path) -> Path:
        """Where the user wrote the part that is now at `path`."""
        for length in range(len(path), 0, -1):
            if (origin := self.origins.get(path[:length])) is not None:
                return (*origin, *path[length:])
        return path


def modernise(document: Mapping[str, object]) -> Modern:
    """The document in the current format; returned unchanged if it has it already."""
    if not _is_older(document):
        return Modern(dict(document))
    modern = Modern({})
    _Move(modern).document(document)
    return modern


def _is_older(document: Mapping[str, object]) -> bool:
    if "rules" in document:
        return False
    sources = document.get("sources")
    both = sources.values() if isinstance(sources, dict) else ()
    has_types = any(isinstance(source, dict) and "type" in source for source in both)
    return "match_rules" in document or ("match_sql" in document and has_types)


class _Move:
    """Moves the parts of one document and notes where each came from."""

    def __init__(self, modern: Modern) -> None:
        self.modern = modern

    def document(self, old: Mapping[str, object]) -> None:
        new = self._known(old, _DOCUMENT, (), "an older recipe")
        new.setdefault("version", "1")
        if "name" not in new and "recipe_id" in old:
            new["name"] = old["recipe_id"]
            self.modern.origins["name",] = ("recipe_id",)
        if isinstance(sources := new.get("sources"), dict):
            new["sources"] = {
                side: self._source(source, ("sources", side))
                if isinstance(source, dict)
                else source
                for side, source in sources.items()
            }
        if "match_rules" in new:
            self.modern.origins["rules",] = ("match_rules",)
            new["rules"] = self._each(new.pop("match_rules"), self._rule, ("match_rules",))
        if isinstance(output := new.get("output"), dict):
            new["output"] = self._folder(output)
        self.modern.document = new

    def _known(
        self, old: Mapping[str, object], names: tuple[str, ...], path: Path, what: str
    ) -> dict[str, object]:
        """The known fields; reports unknown ones and drops empty ones."""
        for name in islice((name for name in old if name not in names), _MOST_UNKNOWN):
            self._find((*path, name), f"is not a field of {what}", old[name],
                           did_you_mean(name, names))  # fmt: skip
        return {name: item for name, item in old.items() if name in names and item is not None}

    def _find(self, path: Path, message: str, value: object, suggestion: str = "") -> None:
        self.modern.findings.append(Finding(path, message, value, suggestion))

    def _each(
        self, items: object, move: Callable[[dict[str, object], Path], object], path: Path
    ) -> object:
        if not isinstance(items, list):
            return items
        return [
            move(item, (*path, index)) if isinstance(item, dict) else item
            for index, item in enumerate(items)
        ]

    def _source(self, old: dict[str, object], path: Path) -> dict[str, object]:
        new = self._known(old, _SOURCE, path, "a source")
        kind = new.pop("type", None)
        if kind is not None:
            if str(kind).lower() not in FORMATS:
                self._find((*path, "type"), "is not a kind of source that can be read", kind,
                           did_you_mean(kind, FORMATS))  # fmt: skip
            elif format_ := FORMATS[str(kind).lower()]:
                new["format"] = format_
                self.modern.origins[(*path, "format")] = (*path, "type")
        if isinstance(key := new.get("primary_key"), str):
            new["primary_key"] = [key]
            self.modern.origins[(*path, "primary_key", 0)] = (*path, "primary_key")
        self._take_table_out_of_uri(new, path)
        if isinstance(filters := new.get("filters"), list):
            new["filters"] = self._filters(filters, (*path, "filters"))
        return new

    def _take_table_out_of_uri(self, new: dict[str, object], path: Path) -> None:
        """Older recipes name a database's table as `?table=` in its uri."""
        uri = new.get("uri")
        if "table" in new or not isinstance(uri, str):
            return
        scheme, separator, _ = uri.partition("://")
        if not separator or scheme not in _DATABASES:
            return
        try:
            parts = urlsplit(uri)
        except ValueError:
            return  # reported when the uri is checked
        fields = parse_qsl(parts.query, keep_blank_values=True)
        if tables := [value for name, value in fields if name == "table"]:
            rest = urlencode([item for item in fields if item[0] != "table"])
            new["uri"] = urlunsplit(parts._replace(query=rest))
            new["table"] = tables[-1]
            self.modern.origins[(*path, "table")] = (*path, "uri")

    def _filters(self, old: list[object], path: Path) -> list[object]:
        new: list[object] = []
        for index, item in enumerate(old):
            for moved in self._filter(item, (*path, index)):
                self.modern.origins[(*path, len(new))] = (*path, index)
                new.append(moved)
        return new

    def _filter(self, old: object, path: Path) -> list[object]:
        if not isinstance(old, dict):
            return [old]
        new = self._known(old, _FILTER, path, "a filter")
        given = new.get("op", "eq")
        op = FILTER_OPS.get(given.strip().lower()) if isinstance(given, str) else None
        if op is None:
            self._find((*path, "op"), "is not an operation of a filter", given,
                       did_you_mean(given, FILTER_OPS))  # fmt: skip
            return []
        value = new.get("value")
        if op == "between":
            if isinstance(value, list) and len(value) == 2:
                return [new | {"op": "gte", "value": value[0]},
                        new | {"op": "lte", "value": value[1]}]  # fmt: skip
            self._find((*path, "value"), "must be a list of the first and the last value", value,
                       "such as [10, 20]")  # fmt: skip
            return []
        if op == "like":
            return self._like(new, value, path)
        return [new | {"op": op}]

    def _like(self, new: dict[str, object], value: object, path: Path) -> list[object]:
        text = value if isinstance(value, str) else ""
        inner = text.strip("%")
        if not inner or "%" in inner or "_" in inner:
            self._find((*path, "value"), "is a pattern that filters do not have", value,
                       "use startswith, endswith or contains")  # fmt: skip
            return []
        ends = (text.startswith("%"), text.endswith("%"))
        op = {(False, False): "eq", (False, True): "startswith", (True, False): "endswith"}
        return [new | {"op": op.get(ends, "contains"), "value": inner}]

    def _rule(self, old: dict[str, object], path: Path) -> dict[str, object]:
        new = self._known(old, _RULE, path, "a rule")
        here: Path = ("rules", *path[1:])
        pattern = new.pop("pattern", None)
        if pattern is not None:
            found = CARDINALITIES.get(str(pattern).strip().lower().replace("-", "_"))
            if found is None:
                self._find((*path, "pattern"), "is not a pattern", pattern,
                           "one of 1:1, 1:N, N:1, M:N")  # fmt: skip
            else:
                new["cardinality"] = found
                self.modern.origins[(*here, "cardinality")] = (*path, "pattern")
        if "conditions" in new:
            new["conditions"] = self._each(
                new["conditions"], self._condition, (*path, "conditions")
            )
        return new

    def _condition(self, old: dict[str, object], path: Path) -> dict[str, object]:
        new = self._known(old, _CONDITION, path, "a condition")
        here: Path = ("rules", *path[1:])
        op = new.get("op", "eq")
        if op not in CONDITION_OPS:
            self._find((*path, "op"), "is not an operation", op, did_you_mean(op, CONDITION_OPS))
            return new
        new["op"] = op
        if op == "tolerance":
            if "threshold" in new:
                new["absolute"] = new.pop("threshold")
            else:
                self._find((*path, "threshold"), "is missing: it is the largest difference", None,
                           "such as 0.01")  # fmt: skip
            self.modern.origins[(*here, "absolute")] = (*path, "threshold")
        elif op != "fuzzy" and (threshold := new.pop("threshold", None)) is not None:
            self._find((*path, "threshold"), f"says nothing for `{op}`", threshold,
                       "leave it out, or use the op tolerance")  # fmt: skip
        return new

    def _folder(self, output: Mapping[str, object]) -> object:
        """Older recipes name a file for each part of the evidence, which is one folder now."""
        texts = [item for item in output.values() if isinstance(item, str)]
        folders = {item.rpartition("/")[0] for item in texts if PurePosixPath(item).suffix}
        folders |= {item.rstrip("/") for item in texts if not PurePosixPath(item).suffix}
        if len(texts) == len(output) and len(folders) <= 1:
            return next(iter(folders), None) or None
        self._find(("output",), "must name one folder: the evidence stays together", dict(output),
                   "write the folder's path")  # fmt: skip
        return None

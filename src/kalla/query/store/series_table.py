"""Series by number: what label texts mean, which series a matcher admits, and their order.

Texts are read once per process; a query works with numbers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kalla.query.array_types import Mask, Whole
from kalla.query.labels.interned import SLACK, Objects, Texts
from kalla.query.labels.label_sets import Labels, unnamed, value_of
from kalla.query.promql.matchers import Matcher, readable

if TYPE_CHECKING:
    from kalla.query.store.label_keys import LabelKeys

Numbers = NDArray[np.int32]

# Labels whose values are cached for every series.
_MOST_LABELS = 50
# Matchers whose results per label value are cached.
_MOST_VERDICTS = 64

_plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode

_decoder = json.JSONDecoder(object_pairs_hook=tuple)


@lru_cache(maxsize=1 << 17)
def text_of(labels: Labels) -> str:
    """The one text of a label set: a JSON object in the order of names."""
    text = _plain(dict(labels))
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8, as surrogates
        return _escaped(dict(labels))
    return text


def labels_of_text(text: str) -> Labels:
    found: Labels = _decoder.raw_decode(text)[0]
    return found


class SeriesTable:
    """The series one process has met. It only grows; many threads may use it.

    Implements `interned.Table`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._label_keys: LabelKeys | None = None  # entry i is the text of series i
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._values: dict[str, _Values] = {}
        self._named = _Sets()
        self._bare = _Sets()
        self._bare_numbers: dict[Labels, int] = {}
        self._bare_of = np.empty(0, np.int64)
        self._schemas: dict[tuple[str, ...], int] = {}
        self._schema_of = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self._named.labels)

    def numbers(self, texts: pa.StringArray | pa.LargeStringArray) -> Numbers:
        """The number of each text; one that is new gets the next."""
        from kalla.query.store.label_keys import FRESH

        content, spans = _content(texts)
        with self._lock:
            keys = self._keys()
            found = keys.find(content, spans)
            fresh = np.flatnonzero(found == FRESH)
            if len(fresh):
                found[fresh] = self._added(texts.take(pa.array(fresh)).to_pylist())
                keys.add(content, spans[fresh], found[fresh])
        return found.astype(np.int32)

    def written(self, numbers: Whole) -> pa.LargeStringArray:
        """The texts of series, as they were given."""
        with self._lock:
            return self._keys().held(numbers).cast(pa.large_string())

    def matching(
        self, matchers: Sequence[Matcher], check: Callable[[], None] = lambda: None
    ) -> Mask:
        """Whether each series fulfils every matcher, by number; `check` may raise between two."""
        admitted = np.ones(len(self), bool)
        for matcher in matchers:
            check()
            with self._lock:
                found = self._values_of(matcher.name).admitted(matcher)
            admitted &= found[
                : len(admitted)
            ]  # series that were added meanwhile are in no snapshot
        return admitted

    def codes(self, name: str) -> Numbers:
        """A number for each series' value of a label, by the number of the series."""
        with self._lock:
            return self._values_of(name).codes

    def _values_of(self, name: str) -> _Values:
        """Cached for the labels used last: a query may name any label."""
        values = self._values.pop(name, None) or _Values(name)
        values.extend(self._named.labels)
        self._values[name] = values
        while len(self._values) > _MOST_LABELS:
            del self._values[next(iter(self._values))]
        return values

    def ranks(self) -> tuple[Whole, Whole]:
        """Each series' place in the order of labels, by number; and the numbers in that order."""
        with self._lock:
            return self._named.ranks()

    def labels(self, numbers: Numbers | Whole) -> list[Labels]:
        found: list[Labels] = self.sets(bare=False)[numbers].tolist()
        return found

    def blank(self, name: str) -> int:
        with self._lock:
            return self._values_of(name).code("")

    def names(self, numbers: Whole) -> set[str]:
        with self._lock:
            labels = self._named.labels
            first = len(self._schema_of)
            if first < len(labels):
                known = self._schemas
                fresh = [
                    known.setdefault(tuple([name for name, _ in one]), len(known))
                    for one in islice(labels, first, None)
                ]
                self._schema_of = np.append(self._schema_of, np.array(fresh, np.int32))
            schemas, of = list(self._schemas), self._schema_of
        met = np.unique(of[numbers]).tolist()
        return set().union(*(schemas[number] for number in met))

    def bare(self) -> Whole:
        with self._lock:
            return self._bared()

    def sets(self, *, bare: bool) -> Objects:
        with self._lock:
            return self._sets(bare=bare).objects()

    def places(self, *, bare: bool) -> Whole:
        with self._lock:
            return self._sets(bare=bare).ranks()[0]

    def texts(self, *, bare: bool) -> Texts:
        with self._lock:
            return self._sets(bare=bare).texts()

    def _sets(self, *, bare: bool) -> _Sets:
        if not bare:
            return self._named
        self._bared()
        return self._bare

    def _bared(self) -> Whole:
        labels, first = self._named.labels, len(self._bare_of)
        if first < len(labels):
            known, fresh = self._bare_numbers, []
            for one in islice(labels, first, None):
                rest = unnamed(one)
                number = known.setdefault(rest, len(known))
                if number == len(self._bare.labels):
                    self._bare.labels.append(rest)
                fresh.append(number)
            self._bare_of = np.append(self._bare_of, np.array(fresh, np.int64))
        return self._bare_of

    def _keys(self) -> LabelKeys:
        from kalla.query.store.label_keys import LabelKeys  # brings the compiler of kernels

        if self._label_keys is None:
            self._label_keys = LabelKeys()
        return self._label_keys

    def _added(self, texts: Sequence[str]) -> list[int]:
        """Of texts that are new; none is added if one of them cannot be read."""
        first = len(self._named.labels)
        known = {text: first + place for place, text in enumerate(dict.fromkeys(texts))}
        fresh = list(map(labels_of_text, known))
        # Most pairs of name and value are shared by many series: each is kept once.
        keep = self._pairs.setdefault
        self._named.labels += [tuple(map(keep, pairs, pairs)) for pairs in fresh]
        return [known[text] for text in texts]


def _content(texts: pa.StringArray | pa.LargeStringArray) -> tuple[NDArray[np.uint8], Whole]:
    """The bytes of a column, and from where to where in them each text is."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, marks, content = texts.buffers()
    if not len(texts) or marks is None or content is None:
        return np.empty(0, np.uint8), np.zeros((len(texts), 2), np.int64)
    bounds = np.frombuffer(marks, width)[texts.offset : texts.offset + len(texts) + 1]
    spans = np.stack([bounds[:-1], bounds[1:]], axis=1).astype(np.int64)
    return np.frombuffer(content, np.uint8), spans


class _Sets:
    """Label sets by number: as objects, in their order, and as text; each made when asked for."""

    def __init__(self) -> None:
        self.labels: list[Labels] = []
        self._objects = np.empty(0, object)
        self._order = np.empty(0, np.int64)
        self._ranks = np.empty(0, np.int64)
        self._texts = Texts(np.zeros(SLACK, np.uint8), np.zeros(1, np.int64))

    def ranks(self) -> tuple[Whole, Whole]:
        count = len(self.labels)
        if len(self._ranks) < count:
            # Two sorted runs: Python's sort merges them without sorting anew.
            key = self.labels.__getitem__
            order: list[int] = self._order.tolist()
            order += sorted(range(len(order), count), key=key)
            order.sort(key=key)
            self._order = np.array(order, np.int64)
            self._ranks = np.empty(count, np.int64)
            self._ranks[self._order] = np.arange(count)
        return self._ranks, self._order

    def objects(self) -> Objects:
        count, first = len(self.labels), len(self._objects)
        if first < count:
            objects = np.empty(count, object)
            objects[:first] = self._objects
            for number in range(first, count):
                objects[number] = self.labels[number]
            self._objects = objects
        return self._objects

    def texts(self) -> Texts:
        content, marks = self._texts
        first = len(marks) - 1
        if first < len(self.labels):
            fresh = _written(self.labels[first:])
            sizes = np.array([len(text) for text in fresh], np.int64)
            marks = np.append(marks, marks[-1] + np.cumsum(sizes))
            more = np.frombuffer(b"".join((*fresh, bytes(SLACK))), np.uint8)
            content = np.concatenate([content[: marks[first]], more])
            self._texts = Texts(content, marks)
        return self._texts


def _written(known: Sequence[Labels]) -> list[bytes]:
    """As JSON; a pair that many share is quoted once."""
    quoted: dict[tuple[str, str], str] = {}
    for labels in known:
        for pair in labels:
            if pair not in quoted:
                quoted[pair] = f"{encode_basestring(pair[0])}:{encode_basestring(pair[1])}"
    get = quoted.__getitem__
    texts = ["{" + ",".join(map(get, labels)) + "}" for labels in known]
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:
        return [readable(text).encode() for text in texts]


class _Values:
    """One label's values, each by a code, and every series' code; an absent label is empty."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.codes = np.empty(0, np.int32)
        self._code_of: dict[str, int] = {}
        self._verdicts: dict[Matcher, Mask] = {}

    def extend(self, labels: Sequence[Labels]) -> None:
        first = len(self.codes)
        if first == len(labels):
            return
        name, code_of = self._name, self._code_of
        fresh = [code_of.setdefault(value_of(one, name), len(code_of)) for one in labels[first:]]
        self.codes = np.concatenate([self.codes, np.array(fresh, np.int32)])

    def code(self, value: str) -> int:
        return self._code_of.setdefault(value, len(self._code_of))

    def admitted(self, matcher: Matcher) -> Mask:
        alternatives = matcher.alternatives
        if alternatives is None:
            return np.asarray(self._tested(matcher)[self.codes])
        admitted = np.zeros(len(self._code_of), bool)
        codes = [self._code_of[value] for value in alternatives if value in self._code_of]
        admitted[codes] = True
        return np.asarray(admitted[self.codes])

    def _tested(self, matcher: Matcher) -> Mask:
        """Whether each value fulfils it, tested once: dashboards repeat their expressions."""
        known = self._verdicts.pop(matcher, np.empty(0, bool))
        if len(known) < len(self._code_of):
            fresh = list(islice(self._code_of, len(known), None))
            known = np.concatenate([known, np.asarray(matcher.admits(fresh), bool)])
        self._verdicts[matcher] = known  # now the one that was used last
        while len(self._verdicts) > _MOST_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        return known

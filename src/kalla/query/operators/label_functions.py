"""Functions of label sets: replacing, joining, and sorting by them."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key

import numpy as np

from kalla.query.array_types import Mask
from kalla.query.evaluate.evaluation import EvalFlow
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame
from kalla.query.labels.label_sets import Labels, changed, value_of
from kalla.query.operators.elementwise import distinct
from kalla.query.promql.matchers import replaced
from kalla.query.promql.syntax_tree import METRIC_NAME, NOWHERE, Span

# The cost of a piece of text in addition to its characters.
_PIECE_BYTES = 16


@dataclass(frozen=True)
class LabelReplace(ExecNode):
    inner: ExecNode
    target: str
    template: str
    source: str
    pattern: str

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        return _relabelled(self.inner.frame(flow), self.target, self, flow)

    def changed(self, known: Sequence[Labels], flow: EvalFlow) -> Iterator[Labels | None]:
        distinct = sorted({value_of(labels, self.source) for labels in known})
        # A template may repeat a long value, and a pattern capture it, thousands of times.
        pieces = self.template.count("$") + self.pattern.count("(") + 1
        flow.budget.texts(
            len(self.template) * len(distinct)
            + sum(pieces * (len(value) + _PIECE_BYTES) for value in distinct)
        )
        results = dict(zip(distinct, replaced(self.pattern, self.template, distinct), strict=True))
        for labels in known:
            result = results.get(value_of(labels, self.source))
            yield None if result is None else changed(labels, {self.target: result})


@dataclass(frozen=True)
class LabelJoin(ExecNode):
    inner: ExecNode
    target: str
    separator: str
    sources: tuple[str, ...]

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        return _relabelled(self.inner.frame(flow), self.target, self, flow)

    def changed(self, known: Sequence[Labels], flow: EvalFlow) -> Iterator[Labels | None]:
        made = 0
        for labels in known:
            parts = [value_of(labels, source) for source in self.sources]
            made += len(self.separator) * len(parts) + sum(map(len, parts))
            flow.budget.texts(made)
            yield changed(labels, {self.target: self.separator.join(parts)})


def _relabelled(frame: Frame, target: str, node: LabelReplace | LabelJoin, flow: EvalFlow) -> Frame:
    def relabel() -> tuple[tuple[Labels, ...], Mask]:
        known = frame.labels
        new = list(node.changed(known, flow))
        labels = tuple(old if one is None else one for old, one in zip(known, new, strict=True))
        return labels, np.array([one is None for one in new], bool)

    labels, untouched = flow.cached(id(node), [frame.labels], relabel)
    # A name that was set is not dropped any more.
    drops = frame.drops & untouched if target == METRIC_NAME else frame.drops
    return distinct(replace(frame, labels=labels, drops=drops), flow)


@dataclass(frozen=True)
class Sorted(ExecNode):
    """Order of an instant query's answer; a range query's is always by labels."""

    inner: ExecNode
    descending: bool
    by: tuple[str, ...] = ()
    by_labels: bool = False
    span: Span = NOWHERE

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        frame = self.inner.frame(flow)
        if self.steps.start != self.steps.end:
            flow.annotations.useless_sort(self.span)
        if self.steps.count != 1 or not frame.labels:
            return frame
        if not self.by_labels:
            values = frame.values[:, 0]
            key = -values if self.descending else values
            return frame.rows(np.lexsort((key, np.isnan(values))))
        order = sorted(range(len(frame.labels)), key=cmp_to_key(self._compared(frame.labels)))
        return frame.rows(order[::-1] if self.descending else order)

    def _compared(self, known: Sequence[Labels]) -> Callable[[int, int], int]:
        def compare(one: int, two: int) -> int:
            for name in self.by:
                first, second = value_of(known[one], name), value_of(known[two], name)
                if first != second:
                    return -1 if naturally_before(first, second) else 1
            return -1 if known[one] < known[two] else int(known[one] > known[two])

        return compare


def naturally_before(one: str, two: str) -> bool:
    """Digits compare as numbers, everything else as text: 4m5 comes before 4m600."""
    first, second = _CHUNKS.findall(one), _CHUNKS.findall(two)
    for a, b in zip(first, second, strict=False):
        if a[0] in string.digits and b[0] in string.digits:
            # As text, because a number may have more digits than Python reads.
            left, right = a.lstrip("0"), b.lstrip("0")
            if left != right:
                return (len(left), left) < (len(right), right)
        elif a != b:
            return bool(a < b)
    return len(first) < len(second)


_CHUNKS = re.compile(r"[0-9]+|[^0-9]+")

"""info(): labels of info series, such as target_info, joined in by instance and job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.blocks import evaluated_frame
from kalla.query.evaluate.evaluation import EvalFlow
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame, merged
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.labels.label_sets import Labels, changed, name_of, only, shown
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import ExecutionFailed
from kalla.query.promql.syntax_tree import METRIC_NAME

_IDENTITY = frozenset({"instance", "job"})


@dataclass(frozen=True)
class InfoSeries:
    """Info series of one metric and one identity: at each step the newest counts."""

    labels: tuple[Labels, ...]
    newest: Whole


@dataclass(frozen=True)
class InfoJoin(ExecNode):
    """`matchers` say which info series to take, and which of their labels."""

    inner: ExecNode
    matchers: tuple[Matcher, ...]
    lookback: int
    whole = True

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Frame:
        base = evaluated_frame(self.inner, flow).filled().sorted()
        names = _names([one for one in self.matchers if one.name == METRIC_NAME])
        selected = [one for one in self.matchers if one.name != METRIC_NAME]
        is_info = [all(one.matches(name_of(labels)) for one in names) for labels in base.labels]
        identities = [
            only(labels, _IDENTITY)
            for labels, skipped in zip(base.labels, is_info, strict=True)
            if not skipped
        ]
        infos = self._infos(flow, identities, (*names, *selected))
        rows: list[tuple[int, Labels, Mask]] = []
        for row, labels in enumerate(base.labels):
            flow.budget.check()
            if is_info[row]:
                rows.append((row, labels, base.present[row]))
                continue
            held = infos.get(only(labels, _IDENTITY), [])
            for extra, where in _enriched(labels, base.present[row], held, selected):
                rows.append((row, changed(labels, extra), where))
        return merged(_gathered(base, rows))

    def _infos(
        self, flow: EvalFlow, identities: Sequence[Labels], matchers: tuple[Matcher, ...]
    ) -> dict[Labels, list[InfoSeries]]:
        values: dict[str, set[str]] = {}
        for identity in identities:
            for name, value in identity:
                values.setdefault(name, set()).add(value)
        if not values:
            return {}
        keys = tuple(
            Matcher(name, "=~", "|".join(re.escape(value) for value in sorted(found)))
            for name, found in values.items()
        )
        leaf = BaseExpr(
            (*matchers, *keys), self.steps, self.lookback, "timestamp", delayed_names=True
        )
        found = flow.leaf(leaf)
        places: dict[tuple[Labels, str], list[int]] = {}
        for row, labels in enumerate(found.labels):
            places.setdefault((only(labels, _IDENTITY), name_of(labels)), []).append(row)
        infos: dict[Labels, list[InfoSeries]] = {}
        for (identity, _), rows in sorted(places.items()):
            held = tuple(found.labels[row] for row in rows)
            newest = _newest(held, found.present[rows], found.values[rows])
            infos.setdefault(identity, []).append(InfoSeries(held, newest))
        return infos


def _names(given: list[Matcher]) -> list[Matcher]:
    """What an info metric is called; exclusions alone would leave every metric there is."""
    if not given:
        return [Matcher(METRIC_NAME, "=", "target_info")]
    if all(one.operator in ("!=", "!~") for one in given):
        return [Matcher(METRIC_NAME, "=~", ".+_info"), *given]
    return given


def _newest(labels: tuple[Labels, ...], present: Mask, times: Floats) -> Whole:
    """At each step the row whose sample is the newest; -1 for none."""
    best = np.full(present.shape[1], -1, np.int64)
    since = np.full(present.shape[1], -np.inf)
    for row in range(len(labels)):
        tied = present[row] & (best >= 0) & (times[row] == since)
        if tied.any():
            step = int(np.argmax(tied))
            at = round(float(times[row, step]) * 1000)
            raise ExecutionFailed(
                "found duplicate series for info metric: existing "
                f"{shown(labels[int(best[step])])} @ {at}, new {shown(labels[row])} @ {at}"
            )
        newer = present[row] & (times[row] > since)
        best[newer] = row
        since = np.where(newer, times[row], since)
    return best


def _enriched(
    labels: Labels, there: Mask, held: Sequence[InfoSeries], selected: Sequence[Matcher]
) -> list[tuple[dict[str, str], Mask]]:
    """Which labels are added, and at which steps."""
    steps_of: dict[tuple[int, ...], list[int]] = {}
    for step in np.flatnonzero(there).tolist():
        steps_of.setdefault(tuple(int(one.newest[step]) for one in held), []).append(step)
    optional = all(one.matches("") for one in selected)
    listed = {one.name for one in selected}
    own = {name for name, _ in labels}
    found: list[tuple[dict[str, str], Mask]] = []
    for picked, steps in steps_of.items():
        hits = [one.labels[at] for one, at in zip(held, picked, strict=True) if at >= 0]
        if not hits and not optional:
            continue
        extra: dict[str, str] = {}
        for info in hits:
            _add_labels(extra, info, listed, own)
        where = np.zeros(len(there), bool)
        where[steps] = True
        found.append((extra, where))
    return found


def _add_labels(extra: dict[str, str], info: Labels, listed: set[str], own: set[str]) -> None:
    for name, value in info:
        if name == METRIC_NAME or (listed and name not in listed):
            continue
        if extra.get(name, value) != value:
            raise ExecutionFailed(f"conflicting label: {name}")
        if name not in own:
            extra[name] = value


def _gathered(base: Frame, rows: Sequence[tuple[int, Labels, Mask]]) -> Frame:
    if not rows:
        return Frame.empty(base.values.shape[1])
    index = np.array([row for row, _, _ in rows], np.int64)
    return Frame(
        tuple(labels for _, labels, _ in rows),
        base.values[index],
        np.array([where for _, _, where in rows]),
        base.drops[index],
    ).filled()

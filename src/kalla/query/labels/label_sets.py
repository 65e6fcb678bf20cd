"""Label sets: sorted pairs of name and value, compared bytewise; an empty value is no label."""

from __future__ import annotations

from collections.abc import Mapping

from kalla.query.promql.lexer import go_quote, is_plain_name
from kalla.query.promql.syntax_tree import METRIC_NAME

Labels = tuple[tuple[str, str], ...]

NONE: Labels = ()
# What describes the metric rather than the series; an operation makes a new metric of it.
METADATA = frozenset({METRIC_NAME, "__type__", "__unit__"})


def labels_of(pairs: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in pairs.items() if value))


def value_of(labels: Labels, name: str) -> str:
    for key, value in labels:
        if key == name:
            return value
    return ""


def name_of(labels: Labels) -> str:
    if labels and labels[0][0] == METRIC_NAME:
        return labels[0][1]
    return value_of(labels, METRIC_NAME)


def without(labels: Labels, names: frozenset[str]) -> Labels:
    return tuple([pair for pair in labels if pair[0] not in names])


def only(labels: Labels, names: frozenset[str]) -> Labels:
    return tuple([pair for pair in labels if pair[0] in names])


def unnamed(labels: Labels) -> Labels:
    return tuple([pair for pair in labels if pair[0] not in METADATA])


def changed(labels: Labels, changes: Mapping[str, str]) -> Labels:
    """With these labels set; an empty value takes the label away."""
    return labels_of({**dict(labels), **changes})


def shown(labels: Labels) -> str:
    """`{a="b", c="d"}`, as Prometheus prints a label set."""
    return "{" + ", ".join(f"{_name(name)}={go_quote(value)}" for name, value in labels) + "}"


def _name(name: str) -> str:
    return name if is_plain_name(name) else go_quote(name)

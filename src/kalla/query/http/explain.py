"""The cost of a query: Prometheus' `stats`, and Kalla's `explain` of leaves and segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kalla.query.promql.durations import written
from kalla.query.promql.lexer import go_quote, is_plain_name
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.number_format import plain
from kalla.query.promql.printer import formatted
from kalla.query.promql.syntax_tree import METRIC_NAME

if TYPE_CHECKING:
    from kalla.query.dispatch.query_records import WorkRecord
    from kalla.query.evaluate.evaluation import LeafCost
    from kalla.query.evaluate.leaf import BaseExpr
    from kalla.query.service.query_request import QueryReply


def stats(reply: QueryReply, *, per_step: bool = False) -> dict[str, Any]:
    """In Prometheus' fields; sorting is not timed separately, planning is preparation."""
    spent = dict(reply.stages)
    query_stats, steps = reply.answer.stats, reply.question.steps
    inner = spent.get("leaves", 0.0) + spent.get("evaluation", 0.0)
    prepared = spent.get("prepare", 0.0) + spent.get("snapshot", 0.0) + spent.get("plan", 0.0)
    samples: dict[str, Any] = {
        "samplesRead": query_stats.samples_read,
        "peakSamples": query_stats.samples_held,
    }
    if reply.question.options.counted:
        samples["totalQueryableSamples"] = sum(query_stats.samples_by_step)
    if per_step:
        samples["totalQueryableSamplesPerStep"] = [
            [time / 1000, samples_by_step]
            for time, samples_by_step in zip(
                steps.times.tolist(), query_stats.samples_by_step, strict=True
            )
        ]
    return {
        "timings": {
            "evalTotalTime": prepared + inner,
            "resultSortTime": 0,
            "queryPreparationTime": prepared,
            "innerEvalTime": inner,
            "execQueueTime": spent.get("wait", 0.0),
            "execTotalTime": reply.seconds,
        },
        "samples": samples,
    }


def explained(reply: QueryReply) -> dict[str, Any]:
    query_stats, steps = reply.answer.stats, reply.question.steps
    leaves: dict[int, list[LeafCost]] = {}
    for fact in query_stats.leaves:
        leaves.setdefault(id(fact.leaf), []).append(fact)
    shown = [_leaf(facts) for facts in leaves.values()]
    return {
        "expression": formatted(reply.question.expr),
        "start": steps.start / 1000,
        "end": steps.end / 1000,
        "step": reply.question.step_ms / 1000,
        "seconds": reply.seconds,
        "stages": [{"name": name, "seconds": seconds} for name, seconds in reply.stages],
        "samples_read": query_stats.samples_read,
        "samples_held": query_stats.samples_held,
        "series": sum(leaf["series"] for leaf in shown),
        "read": _sum([leaf["read"] for leaf in shown]),
        "leaves": shown,
        "work_units": [_work_unit(one) for one in reply.record.work],
        "query_id": reply.record.query_id,
    }


def _work_unit(work: WorkRecord) -> dict[str, Any]:
    return {
        "work_id": work.work_id,
        "leaf": work.leaf_id,
        "shard": work.shard,
        "worker": work.worker,
        "cache": "hit" if work.cache_hit else "miss",
        "retries": max(work.attempts - 1, 0),
        "wait_seconds": work.wait_seconds,
        "run_seconds": work.run_seconds,
        "ready_to_fetch_seconds": work.ready_to_fetch_seconds,
        "fetch_seconds": work.fetch_seconds,
        "rows": work.rows,
        "bytes": work.bytes,
    }


def _leaf(facts: Sequence[LeafCost]) -> dict[str, Any]:
    leaf = facts[0].leaf
    after, until = leaf.bounds
    return {
        "leaf": _written(leaf),
        "matchers": [_condition(one) for one in leaf.matchers],
        "function": leaf.function,
        "range": leaf.range / 1000,
        "offset": leaf.offset / 1000,
        "at": None if leaf.at is None else leaf.at / 1000,
        "pushed_down": _reduction(leaf),
        "after": after / 1000,
        "until": until / 1000,
        "series": sum(fact.series for fact in facts),
        "samples": sum(fact.samples for fact in facts),
        "seconds": sum(fact.seconds for fact in facts),
        "read": _sum([fact.read for fact in facts]),
        "shards": [
            {
                "shard": fact.shard,
                "series": fact.series,
                "samples": fact.samples,
                "seconds": fact.seconds,
                "read": dict(fact.read),
            }
            for fact in sorted(facts, key=lambda fact: fact.shard)
        ],
    }


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for count in counts:
        total.update(count)
    return dict(total)


def _written(leaf: BaseExpr) -> str:
    """The leaf as PromQL has it."""
    name = next(
        (
            one.value
            for one in leaf.matchers
            if one.name == METRIC_NAME and one.operator == "=" and _plain(one.value)
        ),
        "",
    )
    conditions = ",".join(
        _condition(one)
        for one in leaf.matchers
        if not (one.name == METRIC_NAME and one.operator == "=" and one.value == name)
    )
    text = name + (f"{{{conditions}}}" if conditions or not name else "")
    text += f"[{written(leaf.range)}]" if leaf.range else ""
    text += f" {leaf.extension}" if leaf.extension else ""
    text += "" if leaf.at is None else f" @ {leaf.at / 1000:.3f}"
    if leaf.offset:
        text += f" offset {'-' if leaf.offset < 0 else ''}{written(abs(leaf.offset))}"
    if leaf.function:
        parameters = [_value(values) for values in leaf.parameters]
        first = leaf.function == "quantile_over_time"
        arguments = [*parameters, text] if first else [text, *parameters]
        text = f"{leaf.function}({', '.join(arguments)})"
    if leaf.reduction is None:
        return text
    parameter = f"{_value(leaf.reduction.parameter)}, " if leaf.reduction.parameter else ""
    return f"{_reduction(leaf)} ({parameter}{text})"


def _reduction(leaf: BaseExpr) -> str:
    reduction = leaf.reduction
    if reduction is None:
        return ""
    labels = ", ".join(map(_name, reduction.grouping))
    if reduction.without:
        return f"{reduction.operator} without ({labels})"
    return f"{reduction.operator} by ({labels})" if labels else reduction.operator


def _value(values: Sequence[float]) -> str:
    """A parameter; one that differs by step is not shown."""
    return plain(values[0]) if len(values) == 1 else "…"


def _condition(matcher: Matcher) -> str:
    return f"{_name(matcher.name)}{matcher.operator}{go_quote(matcher.value)}"


def _name(name: str) -> str:
    return name if is_plain_name(name) else go_quote(name)


def _plain(metric: str) -> bool:
    return is_plain_name(metric.replace(":", "_"))

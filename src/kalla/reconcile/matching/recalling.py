"""What became of a row in one task, as another knows it: written with the row, or by its key."""

from __future__ import annotations

from collections.abc import Sequence

from kalla.reconcile.matching import loading, shortfalls
from kalla.reconcile.matching.exchange import Ordinals, key_of_source
from kalla.reconcile.matching.values import quote
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import Side
from kalla.reconcile.plan import SidePlan
from kalla.reconcile.sources.scans import parquet, reader


def restore(
    bench: Workbench, side: Side, kept_columns: Sequence[str], ordinals: Ordinals | None
) -> None:
    """A side's rows and their states, as they were when they were written."""
    loading.load(bench, side, whole=False)
    bench.run(f"CREATE TABLE {side}_explained (rid BIGINT)")
    if bench.plan.sides[side].input.known:
        _restore_states(bench, side)
    if ordinals is not None:
        same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in kept_columns)
        alike = ", ".join(kept_columns)
        bench.run(
            f"INSERT INTO {side}_ordinals SELECT a.rid, b.ordinal FROM"
            f" (SELECT *, row_number() OVER (PARTITION BY {alike}) AS twin"
            f" FROM {bench.all_rows(side)}) a"
            f" JOIN {parquet([ordinals.path])} b ON a.twin = b.twin AND {same}"
        )
    (numbered,) = bench.row(f"SELECT count(*) > 0 FROM {side}_ordinals")
    bench.ordinals[side] = bool(numbered)


def recall(bench: Workbench, side: Side, open_rows: SidePlan, suggested: Sequence[str]) -> None:
    """What became of the other side's rows that were found closest: what is not open is settled."""
    other = open_rows.side
    bench.keys_table(other, f"SELECT DISTINCT other FROM {side}_found", "found_keys")
    ordinal = f"coalesce('#' || {quote('kalla:ordinal')}, '')"
    bench.run(
        "CREATE TEMP TABLE still_open AS SELECT f.rid, o.rule FROM found_keys f JOIN"
        f" (SELECT {key_of_source(open_rows)} || {ordinal} AS key, {quote('kalla:rule')} AS rule"
        f" FROM {reader(open_rows.input)}) o USING (key)"
    )
    bench.doubt(other, "SELECT rid, rule, '', NULL, NULL FROM still_open WHERE rule IS NOT NULL")
    files = parquet(suggested) if suggested else "(SELECT NULL AS key)"
    is_suggested = f"key IN (SELECT key FROM {files} WHERE key IS NOT NULL)"
    for status, holds in (("suggested", is_suggested), ("matched", f"NOT ({is_suggested})")):
        bench.settle(
            other,
            f"SELECT rid FROM found_keys WHERE {holds} AND rid NOT IN (SELECT rid FROM still_open)",
            status,
        )


def ordinal(bench: Workbench, side: Side) -> str:
    """Of most sides no key is doubled."""
    if not bench.ordinals[side]:
        return "NULL::BIGINT"
    return f"(SELECT ordinal FROM {side}_ordinals o WHERE o.rid = t.rid)"


def _restore_states(bench: Workbench, side: Side) -> None:
    known = {name: quote(f"kalla:{name}") for name in ("ordinal", "rule")}
    rows = bench.all_rows(side)
    bench.run(
        f"INSERT INTO {side}_ordinals SELECT rid, {known['ordinal']} FROM {rows}"
        f" WHERE {known['ordinal']} IS NOT NULL"
    )
    doubt = [quote(f"kalla:{name}") for name in ("rule", "reason", "candidates", "candidate_count")]
    bench.doubt(
        side,
        f"SELECT rid, {', '.join(doubt)} FROM {rows} WHERE {known['rule']} IS NOT NULL",
    )
    if shortfalls.are_kept(bench.plan):
        shortfalls.restore(bench, side, quote("kalla:shortfalls"))

"""Passes the state of a row from one task to another: written with the row, or by its key."""

from __future__ import annotations

from collections.abc import Sequence

from kalla.reconcile.matching import sum_mismatches
from kalla.reconcile.partitioned.shuffle import Ordinals, key_of_source
from kalla.reconcile.plan.plan import SidePlan
from kalla.reconcile.recipe.model import Side
from kalla.reconcile.session import side_loading
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sources.scanning.scan_sql import parquet, reader
from kalla.reconcile.sql.column_values import quote


def restore(
    session: MatchSession, side: Side, kept_columns: Sequence[str], ordinals: Ordinals | None
) -> None:
    """A side's rows and their states, as they were when they were written."""
    side_loading.load(session, side, whole=False)
    session.run(f"CREATE TABLE {side}_explained (row_id BIGINT)")
    if session.plan.sides[side].input.known:
        _restore_states(session, side)
    if ordinals is not None:
        same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in kept_columns)
        alike = ", ".join(kept_columns)
        session.run(
            f"INSERT INTO {side}_ordinals SELECT a.row_id, b.ordinal FROM"
            f" (SELECT *, row_number() OVER (PARTITION BY {alike}) AS twin"
            f" FROM {session.all_rows(side)}) a"
            f" JOIN {parquet([ordinals.url])} b ON a.twin = b.twin AND {same}"
        )
    (numbered,) = session.row(f"SELECT count(*) > 0 FROM {side}_ordinals")
    session.ordinals[side] = bool(numbered)


def recall(
    session: MatchSession, side: Side, open_rows: SidePlan, suggested: Sequence[str]
) -> None:
    """The states of the nearest candidates on the other side: a row that is not open is settled."""
    other = open_rows.side
    session.keys_table(other, f"SELECT DISTINCT other FROM {side}_found", "found_keys")
    ordinal = f"coalesce('#' || {quote('kalla:ordinal')}, '')"
    session.run(
        "CREATE TEMP TABLE still_open AS SELECT f.row_id, o.rule FROM found_keys f JOIN"
        f" (SELECT {key_of_source(open_rows)} || {ordinal} AS key, {quote('kalla:rule')} AS rule"
        f" FROM {reader(open_rows.input)}) o USING (key)"
    )
    session.mark_ambiguous(
        other, "SELECT row_id, rule, '', NULL, NULL FROM still_open WHERE rule IS NOT NULL"
    )
    files = parquet(suggested) if suggested else "(SELECT NULL AS key)"
    is_suggested = f"key IN (SELECT key FROM {files} WHERE key IS NOT NULL)"
    for status, holds in (("suggested", is_suggested), ("matched", f"NOT ({is_suggested})")):
        session.settle(
            other,
            f"SELECT row_id FROM found_keys WHERE {holds}"
            " AND row_id NOT IN (SELECT row_id FROM still_open)",
            status,
        )


def ordinal(session: MatchSession, side: Side) -> str:
    """Of most sides no key is doubled."""
    if not session.ordinals[side]:
        return "NULL::BIGINT"
    return f"(SELECT ordinal FROM {side}_ordinals o WHERE o.row_id = t.row_id)"


def _restore_states(session: MatchSession, side: Side) -> None:
    known = {name: quote(f"kalla:{name}") for name in ("ordinal", "rule")}
    rows = session.all_rows(side)
    session.run(
        f"INSERT INTO {side}_ordinals SELECT row_id, {known['ordinal']} FROM {rows}"
        f" WHERE {known['ordinal']} IS NOT NULL"
    )
    ambiguity = [
        quote(f"kalla:{name}") for name in ("rule", "reason", "candidates", "candidate_count")
    ]
    session.mark_ambiguous(
        side,
        f"SELECT row_id, {', '.join(ambiguity)} FROM {rows} WHERE {known['rule']} IS NOT NULL",
    )
    if sum_mismatches.are_kept(session.plan):
        sum_mismatches.restore(session, side, quote("kalla:sum_mismatches"))

"""Compares the result of every row in two runs: by side and record key, from their evidence."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from kalla.reconcile.evidence.reading.evidence_reader import Reader, reading, understood
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage

Change = Literal["newly_matched", "newly_broken", "changed", "only_in_a", "only_in_b", "unchanged"]
CHANGES: tuple[Change, ...] = get_args(Change)
WORDS: dict[Change, str] = {
    "newly_matched": "newly matched",
    "newly_broken": "newly broken",
    "changed": "another partner, rule or state",
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "unchanged": "unchanged",
}

COMPARE = Bounds(memory="1GB", seconds=300)
_EXAMPLES = 20
_SHOWN_PARTNERS = 3
_SEPARATOR = "chr(31)"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Compared(_Part):
    """One of the two runs."""

    recipe: str
    recipe_hash: str
    started_at: str


class _Recipe(_Part):
    name: str
    accept_suggested: bool = False


class _Facts(_Part):
    """What is read of metadata.json."""

    recipe: _Recipe
    recipe_hash: str
    started_at: str

    def compared(self) -> Compared:
        return Compared(
            recipe=self.recipe.name, recipe_hash=self.recipe_hash, started_at=self.started_at
        )


class RowResult(_Part):
    """The result of a row in a run."""

    state: Literal["matched", "suggested", "ambiguous", "unmatched"]
    rule: str | None
    partners: str | None
    why: str | None

    def __str__(self) -> str:
        if self.partners:
            return f"{self.state} with {self.partners} by {self.rule!r}"
        return f"{self.state} ({self.why})" if self.why else self.state


class Example(_Part):
    """A row whose result differs between A and B; null where a run does not have it."""

    side: Side
    record_key: str
    amount: Decimal | None  # known of rows that are unmatched or ambiguous in one of the runs
    a: RowResult | None
    b: RowResult | None

    def sentence(self) -> str:
        was = f"was {self.a}" if self.a else ""
        now = f"is {self.b}" if self.b else ""
        return ", ".join(each for each in (was, now) if each)


class Difference(_Part):
    """Counts of rows by side and change, and of each change the rows of the largest amounts."""

    a: Compared
    b: Compared
    notes: list[str]
    counts: dict[Side, dict[Change, int]]
    examples: dict[Change, list[Example]]

    @property
    def is_empty(self) -> bool:
        return not any(
            rows
            for changes in self.counts.values()
            for change, rows in changes.items()
            if change != "unchanged"
        )

    def total(self, change: Change) -> int:
        return sum(changes[change] for changes in self.counts.values())


def compare(
    url_a: str,
    url_b: str,
    storage: Storage,
    examples: int = _EXAMPLES,
    bounds: Bounds = COMPARE,
) -> Difference:
    """A row is settled if it is matched, or suggested where the recipe accepts that. Newly matched
    rows are settled in B only, newly broken ones in A only; changed ones have another partner, rule
    or state. A row that a filter left out of one run is only in the other.
    """
    with reading(storage, bounds) as reader:
        urls = {"a": url_a, "b": url_b}
        facts = {run: understood(url, _Facts, reader.metadata(url)) for run, url in urls.items()}
        counts: dict[Side, dict[Change, int]] = {}
        found: dict[Change, list[Example]] = {
            change: [] for change in CHANGES if change != "unchanged"
        }
        for side in SIDES:
            for run, url in urls.items():
                accepted = facts[run].recipe.accept_suggested
                reader.execute(_standings(reader, run, url, side, accepted))
            reader.execute(_changes())
            counts[side] = _counts(reader)
            for change, example in _examples(reader, side, examples):
                found[change].append(example)
    for change, rows in found.items():
        found[change] = sorted(rows, key=_largest_first)[:examples]
    runs = {run: each.compared() for run, each in facts.items()}
    return Difference(**runs, notes=_notes(**runs), counts=counts, examples=found)


def _standings(reader: Reader, run: str, url: str, side: Side, accepted: bool) -> str:
    """A view of every row of a side: its state and, if matched, by which rule and with whom."""
    other = opposite(side)
    matched = reader.dataset(url, "matched").relation
    unmatched = reader.dataset(url, f"unmatched_{side}").relation
    ambiguous = reader.dataset(url, "ambiguous")
    # Evidence from before ambiguous rows had their amounts is without.
    amount = "amount" if "amount" in {each.name for each in ambiguous.columns} else "NULL"
    state = "CASE status WHEN 'confirmed' THEN 'matched' ELSE status END"
    # The partners of a row are all rows of the other side in its match; M:N has them in other rows.
    groups = (
        f"SELECT match_id, any_value(rule) AS rule, any_value({state}) AS state,"
        f" list(DISTINCT {side}_key) FILTER ({side}_key IS NOT NULL) AS mine,"
        f" list_sort(list(DISTINCT {other}_key) FILTER ({other}_key IS NOT NULL)) AS theirs"
        f" FROM {matched} WHERE cardinality <> '1:1' GROUP BY match_id"
    )
    shown = (
        f"array_to_string(theirs[1:{_SHOWN_PARTNERS}], ', ') || CASE WHEN len(theirs) >"
        f" {_SHOWN_PARTNERS} THEN ' and ' || (len(theirs) - {_SHOWN_PARTNERS}) || ' more'"
        " ELSE '' END"
    )
    settled = "state = 'matched'" if not accepted else "state IN ('matched', 'suggested')"
    nobody = "NULL AS rule, NULL AS partners, NULL AS shown"
    return (
        f"CREATE OR REPLACE TEMP VIEW {run} AS SELECT *, {settled} AS settled FROM ("
        f"SELECT {side}_key AS key, {state} AS state, rule, {other}_key AS partners,"
        f" {other}_key AS shown, NULL AS why, NULL AS amount"
        f" FROM {matched} WHERE cardinality = '1:1'"
        f" UNION ALL SELECT unnest(mine), state, rule,"
        f" md5(array_to_string(theirs, {_SEPARATOR})), {shown}, NULL, NULL FROM ({groups})"
        f" UNION ALL SELECT record_key, 'unmatched', {nobody},"
        " coalesce(failing_condition || ' fails' || coalesce(' by ' || difference, ''),"
        f" replace(rejection_reason, '_', ' ')), amount FROM {unmatched}"
        f" UNION ALL SELECT record_key, 'ambiguous', {nobody}, replace(reason, '_', ' '),"
        f" {amount} FROM {ambiguous.relation} WHERE side = '{side}')"
    )


def _changes() -> str:
    """Unchanged rows are only counted: they are nearly all."""
    names = ("settled", "state", "rule", "partners")
    same = " AND ".join(f"a.{name} IS NOT DISTINCT FROM b.{name}" for name in names)
    return (
        "CREATE OR REPLACE TEMP TABLE changes AS SELECT key,"
        " CASE WHEN a.state IS NULL THEN 'only_in_b' WHEN b.state IS NULL THEN 'only_in_a'"
        " WHEN b.settled AND NOT a.settled THEN 'newly_matched'"
        " WHEN a.settled AND NOT b.settled THEN 'newly_broken' ELSE 'changed' END AS change,"
        " coalesce(b.amount, a.amount) AS amount,"
        " a.state AS a_state, a.rule AS a_rule, a.shown AS a_shown, a.why AS a_why,"
        " b.state AS b_state, b.rule AS b_rule, b.shown AS b_shown, b.why AS b_why"
        f" FROM a FULL JOIN b USING (key) WHERE NOT ({same})"
    )


def _counts(reader: Reader) -> dict[Change, int]:
    found = dict(reader.rows("SELECT change, count(*) FROM changes GROUP BY change"))
    ((rows,),) = reader.rows("SELECT count(*) FROM a")
    gone = sum(count for change, count in found.items() if change != "only_in_b")
    return {change: found.get(change, 0) for change in CHANGES} | {"unchanged": rows - gone}


def _examples(reader: Reader, side: Side, count: int) -> list[tuple[Change, Example]]:
    rows = reader.rows(
        "SELECT change, key, amount, a_state, a_rule, a_shown, a_why, b_state, b_rule, b_shown,"
        " b_why FROM changes QUALIFY row_number() OVER ("
        f"PARTITION BY change ORDER BY abs(amount) DESC NULLS LAST, key) <= {int(count)}"
    )
    return [
        (
            change,
            Example(
                side=side,
                record_key=key,
                amount=amount,
                a=_standing(*standings[:4]),
                b=_standing(*standings[4:]),
            ),
        )
        for change, key, amount, *standings in rows
    ]


def _standing(
    state: Any, rule: str | None, partners: str | None, why: str | None
) -> RowResult | None:
    if state is None:
        return None
    return RowResult(state=state, rule=rule, partners=partners, why=why)


def _largest_first(example: Example) -> tuple[bool, Decimal, str, str]:
    amount = example.amount
    return amount is None, -abs(amount or Decimal(0)), example.side, example.record_key


def _notes(a: Compared, b: Compared) -> list[str]:
    if a.recipe != b.recipe:
        return [f"The runs are of different recipes: {a.recipe!r}, then {b.recipe!r}."]
    if a.recipe_hash != b.recipe_hash:
        return ["The recipe, its parameters or its sources are not the same in both runs."]
    return []

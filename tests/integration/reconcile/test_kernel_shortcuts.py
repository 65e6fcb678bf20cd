"""What the match kernel does to be quick changes nothing of what it says."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import Permanent
from kalla.reconcile import kernel, plan
from kalla.reconcile.evidence import spelling, writing
from kalla.reconcile.evidence.writing import DATASETS, combined
from kalla.reconcile.kernel import Facts
from kalla.reconcile.matching import addressed, closest, pairs, steps
from kalla.reconcile.matching.fates import Fates, as_decimal
from kalla.reconcile.matching.workbench import Resources, Workbench
from kalla.reconcile.model import SIDES, Recipe, Side
from kalla.reconcile.plan import Input
from kalla.reconcile.run import check_conservation

TYPES = {"id": "BIGINT", "ref": "VARCHAR", "amount": "DECIMAL(12,2)", "currency": "VARCHAR"}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ref", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("currency", pa.string()),
    ]
)


def rows(seed: int, count: int = 400) -> list[dict[str, Any]]:
    """Few references for many rows, some of them in no other currency's company."""
    chance = random.Random(seed)
    return [
        {
            "id": number * seed,
            "ref": f"R{chance.randrange(count)}",
            "amount": Decimal(chance.randrange(100, 160)) / 100,
            "currency": chance.choice(["EUR", "USD", "CHF"]),
        }
        for number in range(count)
    ]


def match(folder: Path, *, cardinality: str = "1:1", threads: int = 1) -> Facts:
    side = {"uri": "-", "primary_key": ["id"], "currency": "currency"}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side, "right": side},
            "rules": [
                {
                    "name": "by reference",
                    "cardinality": cardinality,
                    "conditions": [
                        {"left": "ref", "op": "eq", "right": "ref"},
                        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.1"},
                    ],
                }
            ],
        }
    )
    inputs = {}
    folder.mkdir()
    for seed, name in enumerate(SIDES, 1):
        path = folder / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(rows(seed), schema=SCHEMA), path)
        inputs[name] = Input("parquet", (str(path),), TYPES)
    resources = Resources("500MB", threads, folder / "temp")
    made = plan.make(wanted, inputs)
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    check_conservation(facts.sides)
    return facts


def digests(facts: Facts) -> dict[str, str]:
    return {
        name: combined([each.digest for each in facts.written if each.dataset == name])
        for name in DATASETS
    }


def test_keys_joined_row_by_row_or_set_aside_give_the_same_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = match(tmp_path / "joined")
    assert joined.sides["left"].states["matched"].rows > 20
    monkeypatch.setattr(pairs, "_BUCKET_PAIRS", 0)
    assert digests(match(tmp_path / "aside")) == digests(joined)


TOLERANCES: dict[str, dict[str, Any]] = {
    "absolute": {"absolute": "0.1"},
    "uneven": {"below": "0.255", "above": "0"},
    "only above": {"above": "0.2"},
    "left negated": {"absolute": "0.1", "negate": "left"},
    "right negated": {"absolute": "0.1", "negate": "right"},
}


@pytest.mark.parametrize("kinds", [("BIGINT", "BIGINT"), ("INTEGER", "UBIGINT")])
@pytest.mark.parametrize("named", TOLERANCES)
def test_rows_found_by_address_or_by_a_join_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, kinds: tuple[str, str]
) -> None:
    """With keys below zero, numbers left out, payments of nobody and several of one invoice."""
    joined = []

    def join(*given: Any) -> pa.Table | None:
        joined.append(by_address(*given))
        return joined[-1]

    by_address = addressed.join
    monkeypatch.setattr(addressed, "join", join)
    for primary in SIDES:
        found = match_by_id(tmp_path / primary, TOLERANCES[named], kinds, primary)
        assert joined.pop() is not None
        with monkeypatch.context() as patched:
            patched.setattr(addressed, "_PLACES", 0)
            again = match_by_id(tmp_path / f"{primary}-again", TOLERANCES[named], kinds, primary)
        assert joined.pop() is None
        assert found.sides["left"].states["matched"].rows > 20
        assert found.sides["left"].states["ambiguous"].rows > 0
        assert digests(found) == digests(again)


def match_by_id(
    folder: Path, tolerance: dict[str, Any], kinds: tuple[str, str], primary: Side
) -> Facts:
    """Invoices against payments that name them, whichever side the invoices are."""
    chance = random.Random(3)
    sign = -1 if "negate" in tolerance else 1
    invoices = [
        {"id": number * 2 - 100, "cents": chance.randrange(100, 160), "day": chance.randrange(40)}
        for number in range(400)
    ]
    for invoice in invoices:
        invoice["id"] += 200 * ("UBIGINT" in kinds)
    payments = [
        {
            "id": number,
            "of": chance.choice(invoices)["id"] + (number % 9 == 0),
            "cents": sign * chance.randrange(100, 160),
            "day": chance.randrange(40),
        }
        for number in range(400)
    ]
    payments += [payment | {"id": payment["id"] + 1000} for payment in payments[::5]]
    other: Side = "right" if primary == "left" else "left"
    names = {primary: "id", other: "of"}
    side = {"uri": "-", "primary_key": ["id"]}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side, "right": side},
            "rules": [
                {
                    "name": "by number",
                    "conditions": [
                        {"left": names["left"], "op": "eq", "right": names["right"]},
                        {"left": "amount", "op": "tolerance", "right": "amount", **tolerance},
                        {"left": "day", "op": "date_window", "right": "day", "days": 30},
                    ],
                }
            ],
        }
    )
    inputs = {}
    folder.mkdir()
    for name, rows, kind in ((primary, invoices, kinds[0]), (other, payments, kinds[1])):
        path = folder / f"{name}.parquet"
        key = names[name]
        whole = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "UBIGINT": pa.uint64()}
        columns = {each: pa.array([row[each] for row in rows]) for each in rows[0]}
        columns[key] = columns[key].cast(whole[kind])
        columns["amount"] = pa.array(
            [Decimal(cents) / 100 for cents in columns.pop("cents").to_pylist()],
            pa.decimal128(12, 2),
        )
        columns["day"] = columns["day"].cast(pa.int32()).cast(pa.date32())
        pq.write_table(pa.table(columns), path)
        types = {"id": "BIGINT", "of": "BIGINT", "amount": "DECIMAL(12,2)", "day": "DATE"}
        inputs[name] = Input(
            "parquet", (str(path),), {each: types[each] for each in columns} | {key: kind}
        )
    made = plan.make(wanted, inputs)
    resources = Resources("500MB", 1, folder / "temp")
    return kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")


def test_candidates_looked_up_by_currency_or_among_all_rows_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = match(tmp_path / "looked-up")
    near = pq.read_table(tmp_path / "looked-up" / "evidence" / "unmatched_left")
    assert near.column("closest_candidate").null_count < near.num_rows
    monkeypatch.setattr(steps, "MOST_CURRENCIES", 0)
    assert digests(match(tmp_path / "all")) == digests(looked_up)


@pytest.mark.parametrize("failing", SIDES)
def test_a_side_that_cannot_be_explained_fails_the_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    search = closest.search

    def fail(bench: Workbench, side: Side) -> None:
        if side == failing:
            bench.run("SELECT * FROM nowhere")
        search(bench, side)

    monkeypatch.setattr(closest, "search", fail)
    with pytest.raises(Permanent, match="nowhere"):
        match(tmp_path / "run")


@pytest.mark.parametrize("shape", ["even", "skewed", "far away", "alike"])
def test_the_nearest_values_are_among_those_beside(shape: str) -> None:
    chance = np.random.default_rng(7)
    for rows in (0, 1, 2, 50, 3000):
        offered = {
            "even": chance.uniform(-1000, 1000, rows).round(2),
            "skewed": np.concatenate([chance.uniform(0, 1, rows), [1e15] * (rows > 1)]),
            "far away": chance.uniform(5e8, 5e8 + 1, rows).round(2),
            "alike": np.full(rows, 3.5),
        }[shape]
        wanted = np.sort(chance.uniform(-1500, 1500, 40).round(2))
        seen = steps.beside(offered, wanted)
        for each in wanted:
            assert max(offered[offered <= each], default=None) == max(
                seen[seen <= each], default=None
            )
            assert min(offered[offered > each], default=None) == min(
                seen[seen > each], default=None
            )
    assert shape != "even" or len(seen) < len(offered) / 2


@pytest.mark.parametrize("cardinality", ["1:1", "1:N", "M:N"])
def test_the_digest_of_matches_can_be_made_from_the_files_alone(
    tmp_path: Path, cardinality: str
) -> None:
    facts = match(tmp_path / "run", cardinality=cardinality)
    total = 0
    for row in pq.read_table(tmp_path / "run" / "evidence" / "matched").to_pylist():
        who = UUID(bytes=row["match_id"]) if isinstance(row["match_id"], bytes) else row["match_id"]
        mark = "i" if row["interchangeable"] else "f" if row["fifo"] else ""
        how = [row[name] for name in ("rule", "status", "cardinality", "differences")]
        keys = [row["left_key"] or "∅", row["right_key"] or "∅"]
        number = who.int if row["cardinality"] == "1:1" else md5(str(who), *keys)
        total += number * (md5(*how, more=mark) | 1)
    assert total
    assert f"{total % 2**128:032x}" == digests(facts)["matched"]


def md5(*parts: str, more: str = "") -> int:
    text = "\x1f".join(parts) + more
    return int.from_bytes(hashlib.md5(text.encode()).digest(), "little")  # noqa: S324


def test_differences_spelled_once_or_row_by_row_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = match(tmp_path / "once")
    found = pq.read_table(tmp_path / "once" / "evidence" / "matched").column("differences")
    assert 1 < len(set(found.to_pylist())) < len(found)
    monkeypatch.setattr(spelling, "FEW", 1)
    assert digests(match(tmp_path / "by-row")) == digests(once)


def test_pairs_written_by_several_hands_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = match(tmp_path / "alone")
    monkeypatch.setattr(writing, "_LARGE", 5)
    together = match(tmp_path / "together", threads=3)
    assert [each.dataset for each in together.written].count("matched") == 3
    assert digests(together) == digests(alone)


def test_an_id_is_made_of_the_keys_whether_they_came_as_numbers_or_as_text(tmp_path: Path) -> None:
    whole = [(1, 2), (2, 1), (0, -7), (2**63 - 1, -(2**63))]
    other = [("1", "2"), ("01", "3"), ("A-1", "4"), ("-0", "5"), (str(2**63), "6")]
    expected = [mixed("test", "together", left, right) for left, right in whole]
    assert len(set(expected)) == len(whole)
    as_text = [(str(left), str(right)) for left, right in whole]
    for name, keys in (("numbers", whole), ("texts", as_text)):
        assert ids(tmp_path / name, keys) == expected
    assert ids(tmp_path / "others", other) == expected[:1] + [
        md5("test", "together", left, right) for left, right in other[1:]
    ]


def ids(folder: Path, keys: Sequence[tuple[int | str, int | str]]) -> list[int]:
    """Those of the matches of rows with these keys, each pair of them matched."""
    side = {"uri": "-", "primary_key": ["id"]}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side, "right": side},
            "rules": [
                {"name": "together", "conditions": [{"left": "n", "op": "eq", "right": "n"}]}
            ],
        }
    )
    inputs = {}
    folder.mkdir()
    for place, name in enumerate(SIDES):
        path = folder / f"{name}.parquet"
        own = [pair[place] for pair in keys]
        pq.write_table(pa.table({"id": own, "n": range(len(own))}), path)
        kind = "BIGINT" if isinstance(own[0], int) else "VARCHAR"
        inputs[name] = Input("parquet", (str(path),), {"id": kind, "n": "BIGINT"})
    made = plan.make(wanted, inputs)
    resources = Resources("500MB", 1, folder / "temp")
    kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    found = {
        (row["left_key"], row["right_key"]): UUID(str(row["match_id"])).int
        for row in pq.read_table(folder / "evidence" / "matched").to_pylist()
    }
    return [found[str(left), str(right)] for left, right in keys]


def mixed(recipe: str, rule: str, left: int, right: int) -> int:
    """As docs/reconcile.md says it."""
    digest = hashlib.sha256(f"{recipe}\x1f{rule}\x1f".encode()).digest()
    words = [left + 2**63, right + 2**63]
    for turn in range(4):
        seed = int.from_bytes(digest[8 * turn : 8 * turn + 8], "little")
        product = (words[1 - turn % 2] ^ seed) * 0x9E3779B97F4A7C15
        words[turn % 2] ^= (product >> 64) ^ (product % 2**64)
    return (words[0] << 64) + words[1]


def test_a_row_settled_twice_fails_the_match() -> None:
    fates = Fates("left", 5)
    fates.settle(np.array([1, 2]), "matched", 0)
    with pytest.raises(Permanent, match="1 left rows were matched more than once"):
        fates.settle(np.array([2, 3]), "suggested", 1)
    with pytest.raises(Permanent, match="more than once"):
        Fates("left", 5).settle(np.array([4, 4]), "matched", 0)


def test_amounts_of_many_digits_are_counted_exactly() -> None:
    amounts = [Decimal("-99999999999999999999999999999.999999999"), Decimal("0.000000001")] * 3
    fates = Fates("left", len(amounts))
    fates.settle(np.array([0, 2, 4]), "matched", 3)
    table = pa.table(
        {
            "rid": pa.array(range(len(amounts)), pa.int64()),
            "amount": pa.array(amounts, pa.decimal128(38, 9)),
        }
    )
    found = fates.count(table.to_batches(max_chunksize=4))
    assert {place: (rows, as_decimal(units, 9)) for place, (rows, units) in found.items()} == {
        ("matched", 3): (3, Decimal("-299999999999999999999999999999.999999997")),
        ("open", 0): (3, Decimal("0.000000003")),
    }

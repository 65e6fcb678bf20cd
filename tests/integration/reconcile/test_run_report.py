"""Reports on evidence: shares that are never rounded up, and folders that hold something else."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import NotFound
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.evidence.reading.evidence_reader import Damaged
from kalla.reconcile.evidence.reading.evidence_reader import reading as opened
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Recipe
from kalla.storage import LOCAL
from tests.evidence_kit import invoices_and_payments, make_evidence, match_here


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    return Path(make_evidence(folder, *invoices_and_payments(20)))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def change(folder: Path, **fields: Any) -> None:
    path = folder / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(1.0, "100.00"), (0.999999, "99.99"), (0.714285, "71.43"), (0.0, "0.00"), (0.57, "57.00")],
)
def test_a_share_is_100_percent_only_if_it_is_all(rate: float, shown: str) -> None:
    assert run_report.percent(rate) == shown


def test_a_single_exception_among_very_many_rows_is_seen(folder: Path) -> None:
    facts = json.loads((folder / "metadata.json").read_text())
    many = {"matched": {"rows": 10**9, "amount": None}, "unmatched": {"rows": 1, "amount": None}}
    for side in ("left", "right"):
        facts["sources"][side]["states"] = many
    change(folder, sources=facts["sources"])
    found = run_report.of_evidence(str(folder))
    assert (found.exceptions, found.match_rate) == (2, 0.999999)


def test_a_row_that_a_filter_could_not_read_is_an_exception(tmp_path: Path) -> None:
    """Of the rest all is matched, but who would know that this one belongs to nobody?"""
    (tmp_path / "left.csv").write_text("id;amount\n1;900,00\n2;2.000,00\n3;-5,00\n")
    (tmp_path / "right.csv").write_text("id;amount\n1;900,00\n")
    side = {
        "primary_key": ["id"],
        "amount": "amount",
        "csv": {"delimiter": ";", "decimal": ","},
        "filters": [{"column": "amount", "op": "gt", "value": 0}],
    }
    wanted = Recipe.model_validate(
        {
            "name": "filtered",
            "sources": {
                name: {"uri": str(tmp_path / f"{name}.csv")} | side for name in ("left", "right")
            },
            "rules": [{"name": "r", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}],
        }
    )
    found = run_report.of_evidence(match_here(wanted, tmp_path / "evidence"))
    assert (found.exceptions, found.match_rate) == (1, 0.666666)
    assert found.sides["left"]["filtered"].rows == 2
    values, rows = found.troubles
    assert "is not a number, such as '2.000,00' (in rows that filters left out)" in values
    assert rows.startswith("left: 1 row was left out because a filter could not read")


def test_a_folder_may_have_signs_of_a_pattern_in_its_name(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out[1]*"
    shutil.copytree(made, folder)
    found = run_report.of_evidence(str(folder))
    assert found.largest_exceptions == run_report.of_evidence(str(made)).largest_exceptions
    assert found.largest_exceptions
    with opened(LOCAL) as reader:
        assert reader.rows(f"FROM {reader.dataset(str(folder), 'matched').relation} LIMIT 1")


def test_the_recipe_reads_back_from_the_evidence_as_it_was_run(tmp_path: Path) -> None:
    """With what its parameters were given; numbers and dates of filters are still that."""
    text = """
    name: every kind of condition
    parameters: {slack: {type: number, default: 0}, since: {type: date}}
    sources:
      left:
        uri: LEFT
        primary_key: [id]
        filters: [{column: amount, op: gt, value: 0.50}, {column: ref, op: ne, value: "$${x}"}]
      right: {uri: RIGHT, primary_key: [id]}
    rules:
      - name: r
        left_filters: [{column: id, op: gte, value: "${since}"}]
        conditions:
          - {left: ref, op: eq, right: ref}
          - {left: amount, op: tolerance, right: amount, absolute: "${slack}"}
          - {left: ref, op: fuzzy, right: ref, threshold: 0.9}
          - {left: ref, op: contains, right: ref}
          - {left: amount, op: lte, right: amount}
    """
    rows = [("2026-05-01", "a", "10.00"), ("2026-04-01", "b", "20.00")]
    given = {"slack": "0.10", "since": "2026-04-15"}

    def read(left: Path, right: Path) -> Recipe:
        filled = text.replace("LEFT", str(left)).replace("RIGHT", str(right))
        return parsing.read(filled, given)

    folder = make_evidence(tmp_path / "run", rows, rows, read=read)
    wanted = read(tmp_path / "run" / "left.parquet", tmp_path / "run" / "right.parquet")
    assert parsing.read(run_report.recipe_of(folder)) == wanted
    facts = json.loads((Path(folder) / "metadata.json").read_text())
    conditions = facts["recipe"]["rules"][0]["conditions"]
    assert [each["op"] for each in conditions] == ["eq", "tolerance", "fuzzy", "contains", "lte"]
    assert conditions[1]["absolute"] == "0.10"


@pytest.mark.parametrize("text", ["{}", "[]", "null", "no json", "[" * 100_000, '{"recipe": {}}'])
def test_other_metadata_are_told_to_be_damaged(folder: Path, text: str) -> None:
    (folder / "metadata.json").write_text(text)
    for read in (run_report.of_evidence, run_report.recipe_of):
        with pytest.raises(Damaged, match=r"is damaged: its metadata\.json is"):
            read(str(folder))


@pytest.mark.parametrize(
    "fields",
    [{"sources": {}}, {"rules": None}, {"started_at": "noon"}, {"seconds": 1e300}, {"recipe": "x"}],
)
def test_metadata_with_a_field_of_another_kind_are_told_to_be_damaged(
    folder: Path, fields: dict[str, Any]
) -> None:
    change(folder, **fields)
    with pytest.raises(Damaged, match=f"of another kind.*{next(iter(fields))}|sides is missing"):
        run_report.of_evidence(str(folder))


def test_missing_parts_and_foreign_files_are_no_evidence(folder: Path) -> None:
    (file,) = (folder / "unmatched_left").iterdir()
    whole = pq.read_table(file)
    reasons = pa.array(["because"] * whole.num_rows)
    place = whole.schema.names.index("rejection_reason")
    for rows, why in (
        (pa.table({"x": [1]}), "has no column record_key"),
        (whole.set_column(place, "rejection_reason", reasons), "'because' is not a reason"),
        (whole.drop_columns("rejection_reason"), "rejection_reason"),
    ):
        pq.write_table(rows, file)
        with pytest.raises(Damaged, match=f"the evidence at {folder} is damaged: .*{why}"):
            run_report.of_evidence(str(folder))
    file.unlink()
    with pytest.raises(NotFound, match="is not whole"):
        run_report.of_evidence(str(folder))
    with pytest.raises(NotFound, match="there is no evidence"):
        run_report.of_evidence(str(folder / "matched"))


def test_ambiguous_and_suggested_rows_are_among_the_largest_exceptions(tmp_path: Path) -> None:
    left = [("doubted", "a", "900"), ("split", "b", "500"), ("late", "c", "5")]
    right = [("one", "a", "900"), ("two", "a", "900"), ("late", "d", "7")]
    right += [("p1", "b", "300"), ("p2", "b", "200"), ("p3", "b", "50")]
    folder = make_evidence(tmp_path / "run", left, right)
    found = run_report.of_evidence(folder).largest_exceptions
    assert [(each.side, each.record_key, each.amount) for each in found] == [
        ("left", "doubted", Decimal(900)),
        ("right", "one", Decimal(900)),
        ("right", "two", Decimal(900)),
        ("left", "split", Decimal(500)),
        ("right", "p3", Decimal(50)),
    ]
    assert found[0].reason == "ambiguous under 'paid in full' (unequal): it may belong to one, two"
    assert found[3].reason == "suggested by 'paid in parts', with p1, p2"
    assert found[0].closest_candidate == "one"
    accepted = make_evidence(tmp_path / "accepted", left, right, accept_suggested=True)
    keys = [each.record_key for each in run_report.of_evidence(accepted).largest_exceptions]
    assert keys == ["doubted", "one", "two", "p3", "late"]


def test_a_reason_is_told_in_words_of_a_bounded_length(tmp_path: Path) -> None:
    """Though keys are as long as letters, and with whom it was compared comes last."""
    long = "K" * 20_000
    left = [(f"{long}1", "a", "900"), (f"{long}2", "b", "5")]
    right = [(f"{long}3", "a", "900"), (f"{long}4", "a", "900"), (f"{long}5", "b", "7")]
    found = run_report.of_evidence(make_evidence(tmp_path / "run", left, right)).largest_exceptions
    assert {len(each.record_key) for each in found} == {20_001}
    assert max(len(each.reason) for each in found) < 500
    assert any("differ by 2: 5 and 7; the rule allows up to 0.01" in each.reason for each in found)


def test_texts_that_differ_by_white_alone_are_told_in_quotes(tmp_path: Path) -> None:
    found = run_report.of_evidence(
        make_evidence(tmp_path / "run", [("1", "INV-1 ", "5")], [("2", "INV-1", "5")])
    ).largest_exceptions
    assert found[0].reason.endswith("the two values of ref differ: 'INV-1 ' and 'INV-1'")


def test_what_may_let_values_be_read_is_told_beside_them(tmp_path: Path) -> None:
    for side in ("left", "right"):
        (tmp_path / f"{side}.csv").write_text("id;amount;day\n1;900,00;01.05.2026\n")
    conditions = [
        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": 0},
        {"left": "day", "op": "date_window", "right": "day", "days": 1},
    ]

    def troubles(name: str, **csv: str) -> list[str]:
        sources = {
            side: {
                "uri": str(tmp_path / f"{side}.csv"),
                "primary_key": ["id"],
                "csv": {"delimiter": ";"} | (csv if side == "left" else {}),
            }
            for side in ("left", "right")
        }
        rule = {"name": "r", "conditions": conditions}
        wanted = Recipe.model_validate({"name": "n", "sources": sources, "rules": [rule]})
        found = run_report.of_evidence(match_here(wanted, tmp_path / name)).troubles
        return [each for each in found if each.startswith("left")]

    amounts, days = troubles("plain")
    assert amounts.endswith(
        "such as '900,00': set csv.decimal to \",\" if that is the decimal separator"
    )
    assert days.endswith("such as '01.05.2026': set csv.date_format to the format of the dates")
    (tmp_path / "left.csv").write_text("id;amount;day\n1;1.900,00;01.05.2026\n")
    amounts, _ = troubles("grouped", decimal=",")
    assert amounts.endswith(
        "set csv.thousands and csv.decimal to the separators that the file uses"
    )
    (days,) = troubles("wrong", decimal=",", thousands=".", date_format="%Y")
    assert days.endswith("such as '01.05.2026'")


def test_rows_without_an_amount_are_the_last_of_the_largest(tmp_path: Path) -> None:
    rows = ["1,a,,", "2,b,5,EUR", "3,c,7,USD", "4,d,3,"]
    (tmp_path / "left.csv").write_text("\n".join(["id,ref,amount,cur", *rows]) + "\n")
    (tmp_path / "right.csv").write_text("id,ref,amount,cur\n")
    text = MONEY.replace("FILTERS", "[]")
    for side in ("left", "right"):
        text = text.replace(side.upper(), str(tmp_path / f"{side}.csv"))
    found = run_report.of_evidence(match_here(parsing.read(text), tmp_path / "run"))
    keys = [each.record_key for each in found.largest_exceptions]
    assert keys == ["4", "2", "3", "1"]


MONEY = """
name: two currencies
sources:
  left: {uri: LEFT, primary_key: [id], amount: amount, currency: cur, filters: FILTERS}
  right: {uri: RIGHT, primary_key: [id], amount: amount, currency: cur}
rules:
  - name: r
    conditions:
      - {left: ref, op: eq, right: ref}
      - {left: amount, op: tolerance, right: amount, absolute: 0}
"""


def test_groups_that_do_not_fit_are_told_with_both_sums(tmp_path: Path) -> None:
    for name, rows in (("left", ["1,a,5", "2,a,5"]), ("right", ["3,a,5"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,ref,amount", *rows]) + "\n")
    sources = {
        side: {"uri": str(tmp_path / f"{side}.csv"), "primary_key": ["id"], "amount": "amount"}
        for side in ("left", "right")
    }
    conditions = [
        {"left": "ref", "op": "eq", "right": "ref"},
        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": 0},
    ]
    rule = {"name": "r", "cardinality": "M:N", "conditions": conditions}
    wanted = Recipe.model_validate({"name": "sums", "sources": sources, "rules": [rule]})
    found = run_report.of_evidence(match_here(wanted, tmp_path / "run")).largest_exceptions
    assert found[0].reason.endswith("the sums of their groups differ by 5: 10 and 5")


def in_currencies(folder: Path, *currencies: str) -> run_report.Report:
    """Ten rows of each, one of which matches; one is left out."""
    folder.mkdir()
    for side, more in (("left", [f"out,out,1000,{currencies[0]}"]), ("right", [])):
        lines = [
            f"{name}-{n},{name if n == 1 else f'{side}-{n}'},{n * size},{name}"
            for size, name in enumerate(currencies, 1)
            for n in range(1, 11)
        ]
        (folder / f"{side}.csv").write_text("\n".join(["id,ref,amount,cur", *lines, *more]) + "\n")
    text = MONEY.replace("FILTERS", "[{column: ref, op: ne, value: out}]")
    text = text.replace("LEFT", str(folder / "left.csv"))
    wanted = parsing.read(text.replace("RIGHT", str(folder / "right.csv")))
    return run_report.of_evidence(match_here(wanted, folder / "evidence"))


def test_amounts_of_different_currencies_are_never_added_or_ranked(tmp_path: Path) -> None:
    found = in_currencies(tmp_path / "run", "EUR", "JPY")
    sums = {state: each.currencies for state, each in found.sides["left"].items()}
    assert sums["matched"] == {"EUR": Decimal(1), "JPY": Decimal(2)}
    assert sums["unmatched"] == {"EUR": Decimal(54), "JPY": Decimal(108)}
    assert sums["filtered"] == {"EUR": Decimal(1000)}
    assert found.rules[0].right.currencies == {"EUR": Decimal(1), "JPY": Decimal(2)}
    told = [(each.currency, each.amount) for each in found.largest_exceptions]
    assert told == [
        (currency, Decimal(n * size))
        for size, currency in enumerate(("EUR", "JPY"), 1)
        for n in (10, 10, 9, 9, 8)
    ]
    one = in_currencies(tmp_path / "one", "EUR")
    assert not any(each.currencies for each in one.sides["left"].values())
    assert [(each.currency, each.amount) for each in one.largest_exceptions][:2] == [
        (None, Decimal(10)),
        (None, Decimal(10)),
    ]
    many = in_currencies(tmp_path / "many", *(f"C{n}" for n in range(10, 40)))
    assert len(many.largest_exceptions) == 25
    assert len({each.currency for each in many.largest_exceptions}) == 25

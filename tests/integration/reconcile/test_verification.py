"""`kalla evidence verify` recomputes every claim of metadata.json, and names what does not hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kalla.cli.reconcile.evidence import app
from kalla.errors import NotFound
from kalla.reconcile.evidence.verifying.verification import Verification, verify
from kalla.reconcile.recipe.model import Recipe
from kalla.storage import LOCAL, join
from tests.evidence_kit import invoices_and_payments, make_evidence, recipe
from tests.servers import S3Server

FORMAT_1 = Path(__file__).parents[2] / "evidence_format_1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "run"
    return Path(make_evidence(folder, *invoices_and_payments(60)))


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """With files of plain names: the task that wrote one has a random name, which it carries."""
    copy = Path(shutil.copytree(whole, tmp_path / "evidence"))
    document = json.loads((copy / "metadata.json").read_text())
    for dataset, claim in document["datasets"].items():
        plain = {name: name.rpartition("-")[0] + ".parquet" for name in claim["files"]}
        for name, other_name in plain.items():
            (copy / dataset / name).rename(copy / dataset / other_name)
        claim["files"] = list(plain.values())
        claim["sha256"] = {plain[name]: digest for name, digest in claim["sha256"].items()}
    (copy / "metadata.json").write_text(json.dumps(document))
    return copy


def claims_of(found: Verification) -> set[str]:
    return {each.claim for each in found.mismatches}


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str) and len(value) == 32:
        return f"{int(value, 16) ^ 1:032x}"
    return str(Decimal(value or 0) + Decimal("0.01"))


def test_evidence_as_it_was_written_holds(whole: Path) -> None:
    found = verify(str(whole), LOCAL)
    assert found.holds, found.mismatches
    assert (found.files, found.rows) == (6, 84)


def test_evidence_of_the_first_format_holds() -> None:
    found = verify(str(FORMAT_1), LOCAL)
    assert found.holds, found.mismatches
    assert found.format == 1


CLAIMS = [
    *(f"datasets.{name}.{what}" for name in ("matched", "unmatched_left", "unmatched_right",
      "ambiguous") for what in ("rows", "digest")),
    *(f"rules.{rule}.{what}" for rule in (0, 1) for what in ("matches", "left.rows", "right.rows",
      "left.amount", "right.amount", "ambiguous_left", "ambiguous_right")),
    *(f"sources.{side}.states.{state}.rows" for side in ("left", "right")
      for state in ("matched", "suggested", "ambiguous", "unmatched")),
    *(f"sources.{side}.states.{state}.amount" for side in ("left", "right")
      for state in ("matched", "ambiguous", "unmatched")),
    *(f"sources.{side}.rows" for side in ("left", "right")),
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_changed_claim_is_named(copied: Path, claim: str) -> None:
    document = json.loads((copied / "metadata.json").read_text())
    *path, last = [int(each) if each.isdigit() else each for each in claim.split(".")]
    place: Any = document
    for each in path:
        place = place[each]
    place[last] = other(place[last])
    (copied / "metadata.json").write_text(json.dumps(document))
    found = verify(str(copied), LOCAL)
    assert claim in claims_of(found)


@pytest.mark.parametrize("state", ["matched", "suggested", "ambiguous", "unmatched"])
def test_a_sum_of_a_currency_that_the_rows_do_not_have_is_named(copied: Path, state: str) -> None:
    document = json.loads((copied / "metadata.json").read_text())
    document["sources"]["left"]["states"][state]["currencies"] = {"XAU": "1.00"}
    document["rules"][0]["right"]["currencies"] = {"XAU": "1.00"}
    (copied / "metadata.json").write_text(json.dumps(document))
    claims = claims_of(verify(str(copied), LOCAL))
    assert {f"sources.left.states.{state}.currencies", "rules.0.right.currencies"} <= claims


def test_rows_without_a_currency_are_added_up_by_themselves(tmp_path: Path) -> None:
    def with_currencies(left: Path, right: Path) -> Recipe:
        for path in (left, right):
            table = pq.read_table(path)
            names = [None if number % 3 else "EUR" for number in range(table.num_rows)]
            pq.write_table(table.append_column("cur", pa.array(names, pa.string())), path)
        document = recipe(left, right).model_dump(mode="json")
        for source in document["sources"].values():
            source["currency"] = "cur"
        return Recipe.model_validate(document)

    sides = invoices_and_payments(30)
    found = verify(make_evidence(tmp_path / "run", *sides, read=with_currencies), LOCAL)
    assert found.holds, found.mismatches


def rewritten(copied: Path, file: str, change: Callable[[pa.Table], pa.Table]) -> Verification:
    path = copied / file
    pq.write_table(change(pq.read_table(path)), path)
    return verify(str(copied), LOCAL)


def with_first(table: pa.Table, column: str, value: Any) -> pa.Table:
    place = table.column_names.index(column)
    old = table.column(place)
    if pa.types.is_dictionary(old.type):
        old = old.cast(pa.string())
    first = pa.chunked_array([pa.array([value], old.type)])
    changed = pa.chunked_array([*first.chunks, *old.slice(1).chunks])
    return table.set_column(place, column, changed)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("amount", Decimal("1.23")),
        ("record_key", "INV-99999"),
        ("difference", "-6"),
        ("rejection_reason", "no_candidate"),
        ("closest_candidate", None),
    ],
)
def test_a_changed_value_of_an_unmatched_row_is_found(
    copied: Path, column: str, value: Any
) -> None:
    found = rewritten(
        copied, "unmatched_left/rows.parquet", lambda table: with_first(table, column, value)
    )
    assert "datasets.unmatched_left.digest" in claims_of(found)


def test_a_changed_amount_breaks_the_sum_of_its_state(copied: Path) -> None:
    found = rewritten(
        copied,
        "unmatched_left/rows.parquet",
        lambda table: with_first(table, "amount", Decimal("1.23")),
    )
    assert "sources.left.states.unmatched.amount" in claims_of(found)


def test_a_removed_row_breaks_counts_and_digest(copied: Path) -> None:
    found = rewritten(copied, "ambiguous/left.parquet", lambda table: table.slice(1))
    assert {
        "datasets.ambiguous.rows",
        "datasets.ambiguous.digest",
        "sources.left.states.ambiguous.rows",
        "rules.0.ambiguous_left",
    } <= claims_of(found)


def test_a_key_in_two_places_is_named(copied: Path) -> None:
    matched = pq.read_table(copied / "matched/rule-0.parquet").column("left_key")[0].as_py()
    found = rewritten(
        copied,
        "unmatched_left/rows.parquet",
        lambda table: with_first(table, "record_key", matched),
    )
    (doubled,) = (each for each in found.mismatches if each.claim == "each left key in one place")
    assert f"{matched} in 2" in doubled.found


@pytest.mark.parametrize("file", ["rule-0", "rule-1"])
def test_another_partner_does_not_have_the_match_id(copied: Path, file: str) -> None:
    found = rewritten(
        copied,
        f"matched/{file}.parquet",
        lambda table: with_first(table, "left_key", "INV-99999"),
    )
    assert any(claim.startswith("matched.match_id of ") for claim in claims_of(found))


def test_another_match_id_is_named(copied: Path) -> None:
    def swapped(table: pa.Table) -> pa.Table:
        order = pa.array([1, 0, *range(2, len(table))])
        place = table.column_names.index("match_id")
        return table.set_column(place, "match_id", table.column(place).take(order))

    found = rewritten(copied, "matched/rule-0.parquet", swapped)
    assert any(claim.startswith("matched.match_id of ") for claim in claims_of(found))


def test_a_changed_confidence_or_time_is_named_though_no_digest_has_it(copied: Path) -> None:
    def changed(table: pa.Table) -> pa.Table:
        later = pc.add(table.column("matched_at"), pa.scalar(1_000_000, pa.duration("us")))
        place = table.column_names.index("matched_at")
        return with_first(table, "confidence", Decimal("0.10")).set_column(
            place, "matched_at", later
        )

    found = rewritten(copied, "matched/rule-0.parquet", changed)
    kinds = {claim.split(" of ")[0] for claim in claims_of(found)}
    assert kinds == {
        "matched.confidence",
        "matched.matched_at",
        "datasets.matched.sha256.rule-0.parquet",
    }


def test_a_file_that_is_missing_or_cut_is_named(copied: Path) -> None:
    (copied / "matched/rule-0.parquet").unlink()
    cut = copied / "unmatched_right/rows.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    claims = claims_of(verify(str(copied), LOCAL))
    assert {"matched/rule-0.parquet", "unmatched_right/rows.parquet"} <= claims


def test_a_rule_that_no_metadata_name_is_found(copied: Path) -> None:
    found = rewritten(
        copied, "matched/rule-0.parquet", lambda table: with_first(table, "rule", "made up")
    )
    assert {"rules", "rules.0.matches"} <= claims_of(found)


def test_metadata_that_is_none_is_said(copied: Path) -> None:
    for text in ("{", "[]", "{}"):
        (copied / "metadata.json").write_text(text)
        assert claims_of(verify(str(copied), LOCAL)) == {"metadata.json"}
    (copied / "metadata.json").unlink()
    with pytest.raises(NotFound, match=r"has no metadata\.json"):
        verify(str(copied), LOCAL)


def test_evidence_of_a_later_format_is_not_judged_as_if_it_were_known(copied: Path) -> None:
    document = json.loads((copied / "metadata.json").read_text())
    (copied / "metadata.json").write_text(json.dumps(document | {"format": 99}))
    assert "format" in claims_of(verify(str(copied), LOCAL))


def test_evidence_on_s3_is_verified_where_it_lies(
    s3_server: S3Server, bucket: str, whole: Path
) -> None:
    there = join(bucket, "run")
    s3_server.storage.put(whole, there)
    assert verify(there, s3_server.storage).holds


def test_the_command_says_what_holds_and_exits_1_where_it_does_not(copied: Path) -> None:
    good = CliRunner().invoke(app, ["verify", str(copied)])
    assert good.exit_code == 0
    assert "The evidence holds." in good.stdout
    (copied / "ambiguous/left.parquet").unlink()
    bad = CliRunner().invoke(app, ["verify", str(copied)])
    assert bad.exit_code == 1
    assert "ambiguous/left.parquet: claimed a file, found none" in bad.stdout

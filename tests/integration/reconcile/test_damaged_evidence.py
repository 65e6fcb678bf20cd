"""Evidence that is no longer what was written: a sentence says so, and which it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile.evidence.reading import evidence_pages, run_report
from kalla.reconcile.evidence.reading.evidence_export import FORMATS, Format, export
from kalla.reconcile.evidence.reading.evidence_reader import Damaged
from kalla.reconcile.evidence.reading.run_comparison import compare
from kalla.storage import LOCAL
from tests.evidence_kit import invoices_and_payments, make_evidence

PART = "unmatched_left"


def of_metadata(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        document = json.loads((folder / "metadata.json").read_text())
        change(document)
        (folder / "metadata.json").write_text(json.dumps(document))

    return spoil


def as_metadata(content: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "metadata.json").write_bytes(content)

    return spoil


def of_rows(change: Callable[[bytearray], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (file,) = (folder / PART).iterdir()
        file.write_bytes(change(bytearray(file.read_bytes())))

    return spoil


def other_rows(folder: Path) -> None:
    (file,) = (folder / PART).iterdir()
    pq.write_table(pa.table({"x": [1]}), file)


def scrambled(content: bytearray, first: int, last: int) -> bytes:
    content[first:last] = bytes(each ^ 0x5A for each in content[first:last])
    return bytes(content)


EVERYWHERE = {
    "cut": as_metadata(b'{"recipe": {'),
    "a list": as_metadata(b"[]"),
    "not UTF-8": as_metadata(b'{"recipe": "\xe9"}'),
    "deep": as_metadata(b"[" * 100_000),
    "without datasets": of_metadata(lambda document: document.pop("datasets")),
    "files that are none": of_metadata(lambda document: document["datasets"][PART].update(files=5)),
    "half the rows": of_rows(lambda content: bytes(content[: len(content) // 2])),
    "no rows": of_rows(lambda _: b""),
    "pages": of_rows(lambda content: scrambled(content, 4, len(content) // 2)),
    "footer": of_rows(lambda content: scrambled(content, len(content) - 200, len(content) - 8)),
    "other rows": other_rows,
}
# Who wants the rows alone does not ask who made them.
TO_COMPARE = {
    "without recipe": of_metadata(lambda document: document.pop("recipe")),
    "without hash": of_metadata(lambda document: document.pop("recipe_hash")),
    "without a name": of_metadata(lambda document: document["recipe"].pop("name")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_evidence(tmp_path_factory.mktemp("run") / "run", *invoices_and_payments(200))


@pytest.fixture
def folder(whole: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "spoiled"))


@pytest.mark.parametrize("spoil", EVERYWHERE.values(), ids=EVERYWHERE)
def test_damaged_evidence_is_told_by_its_place_whatever_is_asked_of_it(
    whole: str, folder: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    url = str(folder)

    def exported(style: Format) -> None:
        export(url, PART, evidence_pages.Query(), style, tmp_path / f"out.{style}", LOCAL)

    asked: list[Callable[[], Any]] = [
        lambda: evidence_pages.page(url, PART, evidence_pages.Query(), LOCAL),
        *(lambda style=style: exported(style) for style in FORMATS),
        lambda: compare(whole, url, LOCAL),
        lambda: compare(url, whole, LOCAL),
        lambda: run_report.of_evidence(url),
    ]
    for ask in asked:
        with pytest.raises(Damaged, match=rf"^the evidence at .*{url}.* is damaged: .+") as told:
            ask()
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("spoil", TO_COMPARE.values(), ids=TO_COMPARE)
def test_what_a_comparison_needs_of_the_metadata_is_told_where_it_is_missing(
    whole: str, folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    for urls in ((whole, str(folder)), (str(folder), whole)):
        with pytest.raises(Damaged, match=rf"at {folder} is damaged: .*recipe.*Field required"):
            compare(*urls, LOCAL)


def test_the_run_that_is_damaged_is_named_and_not_the_other(whole: str, folder: Path) -> None:
    EVERYWHERE["half the rows"](folder)
    with pytest.raises(Damaged) as told:
        compare(whole, str(folder), LOCAL)
    assert whole not in str(told.value)

"""Evidence on S3 reads as evidence in a folder does."""

from __future__ import annotations

import json
from pathlib import Path

from kalla.reconcile.evidence.reading.evidence_export import export
from kalla.reconcile.evidence.reading.evidence_pages import Query, page
from kalla.reconcile.evidence.reading.run_comparison import compare
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.storage import LOCAL, join
from tests.evidence_kit import invoices_and_payments, make_evidence
from tests.servers import S3Server


def test_pages_exports_and_comparisons_are_the_same(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    storage = s3_server.storage
    here = make_evidence(tmp_path / "run", *invoices_and_payments(60))
    there = join(bucket, "run")
    storage.put(Path(here), there)
    for part in DATASETS:
        assert page(there, part, Query(), storage) == page(here, part, Query(), LOCAL)
    for url, with_what, name in ((here, LOCAL, "here"), (there, storage, "there")):
        export(url, "matched", Query(), "csv", tmp_path / f"{name}.csv", with_what)
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()
    found = compare(there, here, storage)
    assert found.is_empty
    recipe = json.loads((Path(here) / "metadata.json").read_text())["recipe"]
    assert found.a.recipe == recipe["name"]

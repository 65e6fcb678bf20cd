"""`kalla reconcile` and `kalla demo` as a person types them, each with a private Spark."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput
from kalla.local.servers import java
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.evidence.writing.output_lock import claimed
from kalla.reconcile.recipe.model import SIDES
from tests.servers import S3Server, required
from tests.waiting import until

KALLA = [sys.executable, "-m", "kalla.cli.main"]
SECONDS = 170

RECIPE = """
name: till and bank
parameters:
  slack: {type: number, default: 0}
sources:
  left: {uri: left.csv, primary_key: [id], amount: amount}
  right: {uri: right.csv, primary_key: [id], amount: amount}
rules:
  - name: same reference
    conditions:
      - {left: ref, op: eq, right: ref}
      - {left: amount, op: tolerance, right: amount, absolute: "${slack}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "left.csv").write_text("id,ref,amount\nL1,a,10.00\nL2,b,20.00\n")
    (tmp_path / "right.csv").write_text("id,ref,amount\nR1,a,10.00\nR2,b,20.50\n")
    return tmp_path


def kalla(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KALLA, *arguments],
        cwd=folder,
        env=os.environ | {"COLUMNS": "160"} | more,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )


def test_exceptions_found_are_exit_code_1_and_in_the_evidence(folder: Path) -> None:
    with required():
        java.find()
    done = kalla(folder, "reconcile", "recipe.yaml", "--output", "out", "--format", "json")
    assert done.returncode == 1, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["match_rate"] == 0.5
    matched = report["sides"]["left"]["matched"]
    assert (matched["rows"], matched["amount"]) == (1, "10.000000000")
    closest = {
        each["record_key"]: each["closest_candidate"] for each in report["largest_exceptions"]
    }
    assert closest == {"L2": "R2", "R2": "L2"}
    unmatched = pq.read_table(folder / "out" / "unmatched_left").to_pylist()
    assert [(row["record_key"], row["difference"]) for row in unmatched] == [("L2", "0.5")]
    metadata = json.loads((folder / "out" / "metadata.json").read_text())
    assert metadata["datasets"]["matched"]["rows"] == 1
    assert metadata["recipe_hash"] == report["recipe_hash"]
    (mark,) = metadata["sources"]["left"]["marks"]
    assert mark["sha256"] == hashlib.sha256((folder / "left.csv").read_bytes()).hexdigest()
    assert sorted(each.name for each in (folder / "out").iterdir()) == [
        "ambiguous",
        "matched",
        "metadata.json",
        "unmatched_left",
        "unmatched_right",
    ]


def test_all_matched_is_exit_code_0_and_nothing_is_left_running(folder: Path) -> None:
    with required():
        java.find()
    done = kalla(folder, "reconcile", "recipe.yaml", "--set", "slack=0.5", "--output", "out")
    assert done.returncode == 0, done.stderr
    assert "100.00 % of all rows matched" in done.stdout
    assert str(folder / "out") in done.stdout
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if "SparkConnectServer" in " ".join(process.info["cmdline"] or [])
        and psutil.pid_exists(process.pid)
        and process.ppid() == 1
    ]
    again = kalla(folder, "reconcile", "recipe.yaml", "--output", "out")
    assert again.returncode == 2
    assert "evidence is never written over" in again.stderr


def test_a_run_that_is_told_to_end_leaves_nothing_behind(folder: Path) -> None:
    with required():
        java.find()
    temporary = folder / "tmp"
    temporary.mkdir()
    running = subprocess.Popen(
        [*KALLA, "reconcile", "recipe.yaml", "--output", "out"],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        log = "kalla-*/logs/spark.log"
        until(lambda: list(temporary.glob(log)), "Spark starts", SECONDS)
        assert (folder / "out").exists()
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said
    assert not list(temporary.glob("kalla-*"))
    assert not (folder / "out").exists()


def test_evidence_goes_to_s3_and_is_never_written_over_there(
    folder: Path, s3_server: S3Server, bucket: str
) -> None:
    with required():
        java.find()
    given = s3_server.settings
    settings = {
        "KALLA_STORAGE_S3_ENDPOINT": given.s3_endpoint,
        "KALLA_STORAGE_S3_ACCESS_KEY": given.s3_access_key.get_secret_value(),
        "KALLA_STORAGE_S3_SECRET_KEY": given.s3_secret_key.get_secret_value(),
        "KALLA_DATA_DIR": str(folder / "data"),
    }
    url = f"{bucket}/may"
    asked = ("recipe.yaml", "--output", f"{url}/", "--format", "json")
    done = kalla(folder, "reconcile", *asked, **settings)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["evidence"] == url
    storage = s3_server.storage
    assert storage.names(url) == ["ambiguous", "matched", "metadata.json"] + [
        f"unmatched_{side}" for side in SIDES
    ]
    assert run_report.of_evidence(url, storage).exceptions == 2
    assert not (folder / "s3:").exists()
    for place, refusal in (("may", "never written over"), ("june", "if it was killed, remove")):
        storage.write_text(f"{bucket}/june/claim-1", "")
        with (
            pytest.raises(InvalidInput, match=refusal),
            claimed(f"{bucket}/{place}", storage),
        ):
            pass
    assert storage.names(f"{bucket}/june") == ["claim-1"]


def test_a_terminal_that_lacks_a_sign_costs_neither_evidence_nor_exit_code(folder: Path) -> None:
    with required():
        java.find()
    terminal = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    recipe = RECIPE.replace("till and bank", "Prüfung → Mai").replace("default: 0", "default: 1")
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    done = kalla(folder, "reconcile", "recipe.yaml", **terminal)
    assert done.returncode == 0, done.stderr
    assert "100" in done.stdout
    (metadata,) = (folder / "evidence").glob("*/metadata.json")
    assert "Prüfung → Mai" in metadata.read_text(encoding="utf-8")


def test_a_dry_run_prints_the_plan_and_writes_nothing(folder: Path) -> None:
    done = kalla(folder, "reconcile", "recipe.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("native csv, about 2 rows, 1 chunk\n") == 2
    assert "key: eq(ref, ref)" in done.stdout
    assert "checks: tolerance(amount, amount)" in done.stdout
    assert not (folder / "evidence").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / "left.csv").unlink(), "left.csv does not exist"),
        (
            lambda folder: (folder / "left.csv").write_text("id,reff,amount\n"),
            "rules[0].conditions[0].left: is not a column of the left source (did you mean reff?)",
        ),
        (
            lambda folder: pq.write_table(
                pa.table({"id": ["R1"], "ref": ["a"], "amount": [date(2026, 5, 31)]}),
                folder / "right.parquet",
            ),
            "rules[0].conditions[1].right: is a column of type date, which is not an amount",
        ),
        (
            lambda folder: (folder / "recipe.yaml").write_text(
                RECIPE.replace("tolerance", "tolerant")
            ),
            "tolerance",
        ),
        (lambda folder: (folder / "recipe.yaml").write_text("rules: ["), "not valid YAML"),
    ],
    ids=["missing file", "missing column", "date for amount", "unknown op", "no yaml"],
)
def test_what_cannot_run_is_exit_code_2_and_a_sentence(
    folder: Path, change: Any, sentence: str
) -> None:
    change(folder)
    (right,) = sorted(folder.glob("right.*"))[-1:]
    done = kalla(folder, "reconcile", "recipe.yaml", "--right", right.name, "--dry-run")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_reconciles_a_csv_with_a_postgres_table(tmp_path: Path) -> None:
    with required():
        java.find()
    done = kalla(tmp_path, "demo", "--rows", "2000", "--folder", "demo")
    assert done.returncode == 0, done.stderr
    for rule in ("paid in full", "paid in parts", "paid late", "without its reference"):
        assert rule in done.stdout
    assert "The largest exceptions:" in done.stdout
    assert (tmp_path / "demo" / "evidence" / "metadata.json").exists()

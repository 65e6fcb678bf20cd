"""`kalla sources`: what it refuses before it asks the API."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kalla.cli.reconcile.sources import app
from kalla.errors import InvalidInput


@pytest.mark.parametrize("value", ["0.1234567890123456789", "1e400", "12345678901234567.25"])
def test_a_decimal_that_would_arrive_as_another_is_not_sent(tmp_path: Path, value: str) -> None:
    file = tmp_path / "bank.yaml"
    file.write_text(
        "uri: postgresql://reader@127.0.0.1:1/bank\ntable: payments\n"
        f"filters: [{{column: amount, op: in, value: [1.5, {value}]}}]\n"
    )
    outcome = CliRunner().invoke(app, ["add", "bank", "--file", str(file)])
    assert isinstance(outcome.exception, InvalidInput)
    assert str(outcome.exception).startswith("filters[0].value[1]: has more digits than")

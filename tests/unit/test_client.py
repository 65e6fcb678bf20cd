"""How the command line talks to the API: names in addresses, and answers that are not Kalla's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from kalla.cli.client import _fitting
from kalla.cli.main import application
from kalla.errors import KallaError, Unavailable
from kalla.local import ports


def answer_with(monkeypatch: pytest.MonkeyPatch, status: int, body: str) -> list[str]:
    """Every request is answered so; returns the addresses that are asked, as they are sent."""
    asked: list[str] = []

    def send(_client: httpx.Client, request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(status, text=body, request=request)

    monkeypatch.setenv("KALLA_API_TOKEN", "kalla_x")
    monkeypatch.setattr(httpx.Client, "send", send)
    return asked


def carried_out(*arguments: str) -> str:
    app = application([arguments[0]])
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).output


def test_a_name_of_any_signs_has_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, 200, '{"text": "", "source": {}}')
    for name in ("../runs", "a?version=1", "a b/c", "ü.v1"):
        carried_out("recipe", "show", name)
        carried_out("sources", "show", name)
    carried_out("recipe", "show", "a/b", "--version", "3")
    assert [each.removeprefix("/api/recipes/") for each in asked if "recipes" in each] == [
        "%2E%2E%2Fruns",
        "a%3Fversion%3D1",
        "a%20b%2Fc",
        "%C3%BC%2Ev1",
        "a%2Fb/versions/3",
    ]
    assert len(asked) == 9


@pytest.mark.parametrize(("status", "body"), [(200, "<html>"), (500, "[]"), (404, '"no"')])
def test_an_answer_that_is_not_kallas_is_told(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str
) -> None:
    answer_with(monkeypatch, status, body)
    with pytest.raises(KallaError, match=f"answered {status} and is probably not Kalla"):
        carried_out("recipe", "show", "a")


def test_without_a_token_a_kalla_that_is_down_is_told_to_be_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KALLA_API_TOKEN", raising=False)
    monkeypatch.setenv("KALLA_API_URL", f"http://127.0.0.1:{ports.choose_free()}")
    with pytest.raises(Unavailable, match="Kalla is not running"):
        carried_out("jobs", "list")


@pytest.mark.parametrize(
    ("shell", "asked", "expected"),
    [
        ("complete_bash", {"COMP_WORDS": "kalla runs s", "COMP_CWORD": "2"}, "submit"),
        ("complete_zsh", {"_TYPER_COMPLETE_ARGS": "kalla ru"}, "runs"),
    ],
)
def test_the_shell_is_told_how_a_command_may_go_on(
    shell: str, asked: dict[str, str], expected: str
) -> None:
    """Also below a group, whose module is imported only when it is asked for."""
    found = subprocess.run(
        [sys.executable, "-c", "from kalla.cli.main import main; main()"],
        env=os.environ
        | asked
        | {"_KALLA_COMPLETE": shell, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert expected in found.stdout, found.stderr


def test_a_table_leaves_columns_out_where_the_window_is_narrow() -> None:
    columns, rows = ["job", "worker", "last error"], [["1", "w" * 40, "e" * 40]]
    assert _fitting(columns, rows, ["worker"], 200) == [0, 1, 2]
    assert _fitting(columns, rows, ["worker"], 80) == [0, 2]

"""How the command line talks to the API: names in addresses, and answers that are not Kalla's."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

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

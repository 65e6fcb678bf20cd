"""How the command line talks to the API: a token, problems as sentences, tables for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote
from uuid import uuid4

import httpx
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kalla import settings
from kalla.errors import (
    Conflict,
    InvalidInput,
    KallaError,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Problem,
    Unavailable,
)
from kalla.web.text_format import seconds, visible, visible_lines

Style = Annotated[Literal["text", "json"], typer.Option("--format", help="For people or programs.")]

_TRIES = 4
_ERRORS: dict[int, type[KallaError]] = {
    kind.status: kind for kind in (NotAuthenticated, NotAllowed, NotFound, Conflict, Unavailable)
}
_COLOURS = {
    "completed": "green",
    "failed": "red",
    "silent": "red",
    "claimed": "blue",
    "working": "blue",
    "paused": "yellow",
    "draining": "yellow",
    "cancelled": "dim",
}


class Client:
    """The API, as far as commands need it. Every answer is JSON; every refusal is an error."""

    def __init__(self, seconds: float = 30) -> None:
        api = settings.load().settings.api
        self.url = api.url.rstrip("/")
        token = api.token.get_secret_value()
        if not token:
            if not _listens(self.url):
                raise Unavailable(
                    f"Kalla is not running: nothing answers at {self.url}. Start it with "
                    "`kalla up`, or set api.url."
                )
            raise NotAuthenticated(
                "No token is set: run this beside a running `kalla up`, or set KALLA_API_TOKEN "
                "(`kalla token create` makes one)."
            )
        self._http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=seconds
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._send(self._http.build_request("GET", path, params=given))

    def post(self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Any:
        """Sent under an Idempotency-Key, so that trying again when the line breaks does no harm."""
        headers = {"Idempotency-Key": key or uuid4().hex}
        request = self._http.build_request("POST", path, json=body, headers=headers)
        for left in reversed(range(_TRIES)):
            try:
                return self._send(request)
            except Unavailable:
                if not left:
                    raise
                time.sleep(0.3)
        raise AssertionError("unreachable")

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send(self._http.build_request("PATCH", path, json=body))

    def delete(self, path: str) -> None:
        self._send(self._http.build_request("DELETE", path))

    def ask(self, path: str, **fields: Any) -> Any:
        """A form that changes nothing: for what is too long for an address."""
        given = {name: value for name, value in fields.items() if value is not None}
        return self._send(self._http.build_request("POST", path, data=given))

    def upload(self, path: str, content: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send bytes; a refusal of a part of them (400) is for the caller to read."""
        request = self._http.build_request("POST", path, content=content, headers=dict(headers))
        try:
            answer = self._http.send(request)
        except httpx.TransportError as error:
            raise Unavailable(f"The API at {self.url} does not answer ({error}).") from None
        if answer.is_success or answer.status_code == httpx.codes.BAD_REQUEST:
            return answer
        raise _refusal(answer, self.url)

    def send_file(self, path: str, file: Path) -> Any:
        """Send a file as a body, a piece at a time."""
        with file.open("rb") as content:
            given = {"name": file.name}
            return self._send(self._http.build_request("POST", path, params=given, content=content))

    def download(self, path: str, file: Path, **query: Any) -> None:
        """Write an answer to a file as it comes, however long it is."""
        given = {name: value for name, value in query.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _refusal(answer, self.url)
                with file.open("wb") as target:
                    for chunk in answer.iter_bytes():
                        target.write(chunk)
        except httpx.TransportError as error:
            raise Unavailable(f"The API at {self.url} broke off ({error}): try again.") from None

    def _send(self, request: httpx.Request) -> Any:
        try:
            answer = self._http.send(request)
        except httpx.TransportError as error:
            raise Unavailable(
                f"The API at {self.url} does not answer ({error}): start it with `kalla up` or "
                "`kalla api`, or set api.url."
            ) from None
        if not answer.is_success:
            raise _refusal(answer, self.url)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise _stranger(answer, self.url) from None


def _listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=3)
    except httpx.TransportError:
        return False
    return True


def address(*parts: str) -> str:
    """The path of a named thing in the API; escapes any character of the name."""
    return "/api/" + "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)


def say(text: str, err: bool = False) -> None:
    """Prints text that may come from users or sources, without control characters."""
    typer.echo(visible_lines(text), err=err)


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str,
    optional: Sequence[str] = (),
) -> None:
    """A table without frames; what stands for a state has its colour. No cell, which may be one of
    a user's source, commands the terminal.

    In a window too narrow for all, the `optional` columns are left out, the first one first, and
    what is still too long is cut: a line of the table is a line on the screen.
    """
    if not rows:
        typer.echo(empty)
        return
    screen = console()
    shown = _fitting(columns, rows, optional, screen.width)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for index in shown:
        table.add_column(Text(visible(columns[index])), no_wrap=True, overflow="ellipsis")
    for row in rows:
        cells = (row[index] for index in shown)
        table.add_row(*(Text(visible(cell), style=_COLOURS.get(cell, "")) for cell in cells))
    screen.print(table)


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int
) -> list[int]:
    """The numbers of the columns that there is room for."""
    widths = [
        max(cell_len(visible(cell)) for cell in (name, *(row[index] for row in rows)))
        for index, name in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    for name in optional:
        if sum(widths[index] + 2 for index in shown) <= width:
            break
        shown = [index for index in shown if columns[index] != name]
    return shown


def console() -> Console:
    # A pipe has no width to fold into.
    return Console(highlight=False) if sys.stdout.isatty() else Console(width=1000, highlight=False)


def ago(text: str | None) -> str:
    """How long ago a moment of the API was, in words."""
    if text is None:
        return ""
    passed = time.time() - datetime.fromisoformat(text).timestamp()
    return f"{seconds(passed)} ago" if passed >= 0 else f"in {seconds(-passed)}"


def _refusal(answer: httpx.Response, url: str) -> KallaError:
    try:
        problem = answer.json()
        detail = str(problem["error"] if problem.get("status") == "error" else problem["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return _stranger(answer, url)
    if errors := problem.get("errors"):
        return InvalidInput(*(Problem(item["field"], item["message"]) for item in errors))
    return _ERRORS.get(answer.status_code, KallaError)(detail[:1].upper() + detail[1:])


def _stranger(answer: httpx.Response, url: str) -> KallaError:
    return KallaError(
        f"{url} answered {answer.status_code} and is probably not Kalla: set api.url."
    )

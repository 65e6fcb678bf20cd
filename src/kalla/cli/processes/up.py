"""`kalla up`: the whole system on this machine, with a line for every part."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kalla import logs, settings
from kalla.cli.client import Client
from kalla.errors import KallaError
from kalla.local.folder import AlreadyRunning
from kalla.local.process import Server
from kalla.local.supervisor import News
from kalla.local.system import System
from kalla.web.tokens import login_links


def command(
    servers: Annotated[
        str, typer.Option("--with", help="Servers to try out sinks with: kafka,clickhouse.")
    ] = "",
    query_workers: Annotated[
        int | None, typer.Option("--query-workers", min=1, max=64, help="Query workers to start.")
    ] = None,
) -> None:
    """Start Postgres, NATS, Spark, the API and workers on this machine. Ctrl-C stops all of it.

    Examples:

      kalla up

      KALLA_UP_WORKERS=auto kalla up --with kafka,clickhouse
    """
    wanted = [name.strip() for name in servers.split(",") if name.strip()]
    up: dict[str, object] = {"servers": wanted} if wanted else {}
    if query_workers is not None:
        up["query_workers"] = query_workers
    overrides = {"up": up} if up else {}
    effective = settings.load(with_running=False, overrides=overrides)
    logs.configure("warning", effective.settings.log.format)
    board = Board(Console(highlight=False))
    system = System(effective, board.tell)
    try:
        system.run(board.announce)
    except AlreadyRunning:
        if link := _new_link():
            board.say(f"Kalla is up already: {link}")
        raise
    finally:
        board.close()
    board.say("Kalla has stopped.")


def _new_link() -> str | None:
    """A login link of the Kalla that runs in this folder; None where it cannot be asked."""
    api = settings.load().settings.api
    if not api.token.get_secret_value():
        return None
    try:
        with Client() as client:
            return login_links.address(api.url, client.post("/api/login-links")["code"])
    except KallaError:
        return None


NEXT_STEPS = (
    ("kalla sources add NAME URI", "register a file, a folder or a table"),
    ("kalla recipe save FILE", "say how the rows of two sources match"),
    ("kalla runs submit RECIPE", "reconcile, and see it on the page"),
)


class Board:
    """What a person sees: a spinner for what is on its way, a line for what is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting: dict[Server, tuple[str, float]] = {}
        self._up = False
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._render,
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def tell(self, news: News) -> None:
        server = news.server
        if news.event in ("starting", "stopping"):
            self._waiting[server] = (news.event, time.monotonic())
            return
        self._waiting.pop(server, None)
        stamp = f"{datetime.now().astimezone():%H:%M:%S} " if self._up else ""
        if news.event == "trouble":
            self._line(f"  [yellow]![/] {stamp}", news.text)
            return
        what = "  stopped" if news.event == "stopped" else ""
        self._line(
            f"  [green]✓[/] {stamp}",
            f"{_columns(server, server.version, news.seconds)}{what}",
        )

    def announce(self, link: str) -> None:
        self._up = True
        self._line("\n  Kalla is up: ", link)
        self._line("  ", "Ctrl-C stops it. In another terminal, in this folder:\n")
        for step, purpose in NEXT_STEPS:
            self._line("  ", f"  {step:<38} {purpose}")
        self._line("", "")

    def say(self, text: str) -> None:
        self._line("  ", text)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _line(self, head: str, text: str) -> None:
        # Soft: a link or a sentence broken in two cannot be clicked or searched for.
        self._console.print(Text.from_markup(head) + Text(text), soft_wrap=True)

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for server, (event, began) in list(self._waiting.items()):
            table.add_row(
                " ",
                Spinner("dots"),
                _columns(server, event, time.monotonic() - began),
            )
        return table


def _columns(server: Server, word: str, seconds: float) -> str:
    return f"{server.name:<14} {word:<9} {server.address:<22} {seconds:5.1f} s"

"""`kalla token`: who may call the API. Works on the database itself: the first one needs no API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Literal, TypeVar

import psycopg
import typer
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from kalla import settings
from kalla.cli.client import print_json, print_table
from kalla.database import Connection, unanswered
from kalla.errors import Unavailable
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import Role, TokenRecord

app = typer.Typer(no_args_is_help=True)
Result = TypeVar("Result")


@app.command()
def create(
    name: Annotated[str, typer.Option(help="The owner's name, shown with every action.")],
    role: Annotated[
        Role,
        typer.Option(
            help="metrics-writer only writes metrics, viewer reads, operator acts, admin manages."
        ),
    ],
    expires_days: Annotated[
        float | None, typer.Option(help="Expires after this many days.")
    ] = None,
    replace: Annotated[bool, typer.Option(help="Revoke earlier tokens of this name.")] = False,
) -> None:
    """Make a token and print it. It is shown this once; only its hash is kept."""
    seconds = None if expires_days is None else expires_days * 24 * 3600
    typer.echo(_act(lambda connection: tokens.create(connection, name, role, replace, seconds)))


@app.command("list")
def list_tokens(
    style: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
) -> None:
    """Show every token there was, without the token itself."""
    found = _act(tokens.listing)
    if style == "json":
        print_json([vars(record) for record in found])
        return
    print_table(
        ["id", "name", "role", "state", "created", "last used"],
        [
            [
                str(record.token_id),
                record.name,
                record.role,
                _state(record),
                _day(record.created_at),
                _day(record.last_used_at),
            ]
            for record in found
        ],
        "No tokens yet: `kalla token create --name you --role admin` makes one.",
    )


@app.command()
def revoke(token_id: Annotated[int, typer.Argument(metavar="ID")]) -> None:
    """Make a token useless, at once."""
    record = _act(lambda connection: tokens.revoke(connection, token_id))
    typer.echo(f"Token {record.token_id} of {record.name} is revoked.")


def _act(act: Callable[[Connection], Awaitable[Result]]) -> Result:
    return asyncio.run(_in_transaction(act))


async def _in_transaction(act: Callable[[Connection], Awaitable[Result]]) -> Result:
    database = settings.load().settings.database
    try:
        connection: Connection = await AsyncConnection.connect(
            database.url.get_secret_value(),
            row_factory=dict_row,
            connect_timeout=max(1, int(database.connect_timeout)),
        )
        async with connection:
            return await act(connection)
    except psycopg.errors.UndefinedTable:
        raise Unavailable("the database is not migrated: run `kalla migrate`") from None
    except psycopg.OperationalError as error:
        raise unanswered(error) from None


def _state(record: TokenRecord) -> str:
    if record.revoked_at is not None:
        return f"revoked {_day(record.revoked_at)}"
    if not record.valid:
        return "expired"
    return f"valid until {_day(record.expires_at)}" if record.expires_at else "valid"


def _day(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}" if at else "never"

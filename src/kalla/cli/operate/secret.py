"""`kalla secret`: on the database itself, never through the API: no secret travels in a request."""

from __future__ import annotations

import getpass
import sys
from datetime import datetime
from typing import Annotated

import typer
from pydantic import SecretStr

from kalla import settings
from kalla.cli.client import Style, print_json, print_table
from kalla.errors import InvalidInput, Problem
from kalla.secrets import LARGEST_BYTES, Vault, valid_name

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What sources call secret://NAME.")]


@app.command("set", context_settings={"allow_extra_args": True})
def set_secret(name: Name, context: typer.Context) -> None:
    """Store a secret, encrypted. Its value is asked for, or read from standard input."""
    if context.args:  # the usual complaint would print them
        raise InvalidInput(
            Problem("value", "is asked for and never an argument: the shell would remember it")
        )
    valid_name(name)
    _vault().put(name, _value(name), by=_user())
    typer.echo(f"The secret {name} is stored: use it as secret://{name}.")


@app.command("list")
def list_secrets(style: Style = "text") -> None:
    """Show the names of the stored secrets, never their values."""
    found = _vault().listing()
    if style == "json":
        print_json([vars(record) for record in found])
        return
    print_table(
        ["name", "key", "created", "by", "changed", "by"],
        [
            [
                record.name,
                record.key_id,
                _minute(record.created_at),
                record.created_by,
                _minute(record.changed_at),
                record.changed_by,
            ]
            for record in found
        ],
        "No secrets are stored: `kalla secret set NAME` stores one.",
    )


@app.command()
def remove(name: Name) -> None:
    """Forget a stored secret."""
    _vault().remove(name)
    typer.echo(f"The secret {name} is removed.")


def _vault() -> Vault:
    return Vault(settings.load().settings)


def _value(name: str) -> SecretStr:
    """From the keyboard without showing it; from a pipe without its last line end."""
    if sys.stdin.isatty():
        return SecretStr(getpass.getpass(f"Value of {name} (not shown): "))
    content = sys.stdin.buffer.read(LARGEST_BYTES + 3)
    try:
        return SecretStr(content.decode().removesuffix("\n").removesuffix("\r"))
    except UnicodeDecodeError:
        raise InvalidInput(Problem("value", "is not text in UTF-8")) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"  # a container's user often has no name


def _minute(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"

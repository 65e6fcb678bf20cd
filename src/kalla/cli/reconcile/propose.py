"""`kalla sources profile` and `kalla recipe propose`: from files to a first recipe, with no server.

Names of registered sources are asked of the API.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalla import settings
from kalla.cli.client import Client, Style, address, print_json, print_table, say
from kalla.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from kalla.reconcile.recipe.model import Source

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_BAR = "▁▂▃▄▅▆▇█"

Given = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A registered source, or a file.")]


def profile(given: Given, style: Style = "text") -> None:
    """Show what is in a source: columns, types, examples, and how its file is written."""
    found = _remote_profile(given) if _is_registered(given) else _local_profile(given)
    if style == "json":
        print_json(found)
        return
    print_table(
        ["column", "holds", "empty", "distinct", "distribution", "from", "to", "examples"],
        [
            [
                each["name"],
                each["role"],
                f"{each['nulls']:,}",
                f"{each['distinct']:,}",
                _sparkline([bin_["rows"] for bin_ in each["histogram"]]),
                _shown(each["smallest"]),
                _shown(each["largest"]),
                ", ".join(each["examples"]),
            ]
            for each in found["columns"]
        ],
        "No columns.",
    )
    part = f" of about {found['total']:,}" if found["total"] else ""
    say(f"{found['format']}, {found['rows']:,} rows{part}, {found['bytes']:,} bytes")
    key = ", ".join(found["primary_key"]) or "none found"
    say(f"primary key: {key} ({found['primary_key_note']})")
    options = "xlsx" if found["format"] == "xlsx" else "csv"
    for each in found["decisions"]:
        sure = "" if each["is_sure"] else " (not sure)"
        say(f"{options}.{each['option']}: {_quoted(each['value'])}{sure}: {each['reason']}")
    for note in found["notes"]:
        say(f"Note: {note}.")


def propose(
    left: Annotated[str, typer.Argument(metavar="A", help="A file or a registered source.")],
    right: Annotated[str, typer.Argument(metavar="B", help="The source it should agree with.")],
    output: Annotated[
        Path | None, typer.Option(help="Write the recipe to this file, which must not exist.")
    ] = None,
    style: Style = "text",
) -> None:
    """Propose a recipe for two sources, with the evidence for each part as comments."""
    if output is not None and output.exists():
        raise InvalidInput(Problem("--output", f"{output} exists already: name another file"))
    if _is_registered(left) != _is_registered(right):
        raise InvalidInput(
            Problem("B", "is known to the API alone, or A is: name two files or two sources")
        )
    if _is_registered(left):
        asked = {"left": f"source://{left}", "right": f"source://{right}"}
        with Client(seconds=150) as client:
            found = client.post("/api/recipes/propose", asked)
    else:
        found = _local_proposal(left, right)
    if output is not None:
        output.write_text(found["text"], "utf-8")
    if style == "json":
        print_json(found)
        return
    if output is None:
        typer.echo(found["text"], nl=False)
        return
    rate = found["trial"]["match_rate"]
    say(f"The recipe in {output} matches {rate:.1%} of the rows that it was tried on.")
    for each in found["evidence"]:
        say(f"  {each}.")
    for each in found["unsure"]:
        say(f"Not sure: {each}.")
    say(f"Next: kalla reconcile {output}")


def _is_registered(given: str) -> bool:
    """A plain name without a file here is the name of a source in the API."""
    return bool(_NAME.fullmatch(given)) and not Path(given).exists()


def _remote_profile(name: str) -> dict[str, Any]:
    with Client(seconds=150) as client:
        found: dict[str, Any] = client.get(address("sources", name, "profile"))
    return found


def _local_profile(given: str) -> dict[str, Any]:
    from kalla.reconcile.propose import profile as profiles  # drivers take their time to load
    from kalla.reconcile.sources.inspection import plain_fields
    from kalla.secrets import Vault
    from kalla.storage import Storage

    loaded = settings.load().settings
    found = profiles.profile(
        _source(given), storage=Storage.of(loaded.storage), resolve=Vault(loaded).resolve
    )
    return plain_fields(dataclasses.asdict(found))


def _local_proposal(left: str, right: str) -> dict[str, Any]:
    from kalla.reconcile.propose import proposal
    from kalla.secrets import Vault
    from kalla.storage import Storage

    loaded = settings.load().settings
    names = _stem(left), _stem(right)
    if names[0] == names[1]:
        names = "left", "right"
    found = proposal.propose(
        _source(left),
        _source(right),
        names=names,
        storage=Storage.of(loaded.storage),
        resolve=Vault(loaded).resolve,
        progress=lambda stage: typer.echo(f"{stage} …", err=True),
    )
    return proposal.as_facts(found)


def _source(given: str) -> Source:
    from kalla.reconcile.recipe.model import Source

    return Source(uri=given, primary_key=("?",))


def _stem(given: str) -> str:
    return given.rstrip("/").rpartition("/")[2].partition(".")[0] or given


def _sparkline(counts: list[int]) -> str:
    most = max(counts, default=0)
    return "".join(_BAR[round(each / most * (len(_BAR) - 1))] for each in counts) if most else ""


def _shown(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:24]}…"


def _quoted(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)

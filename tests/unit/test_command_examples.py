"""Every command shows examples in its help, and each of them is a command line that Kalla takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kalla.cli.main import COMMANDS, application

_EXAMPLE = re.compile(r"^ +((?:[A-Z_]+=\S+ )*kalla .+)$", re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_shows_examples_that_can_be_typed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(application([name]), [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Examples:" in shown.output
    examples = _EXAMPLE.findall(shown.output.partition("Examples:")[2])
    assert examples
    for example in examples:
        words = [word for word in shlex.split(example) if not re.match(r"[A-Z_]+=", word)]
        for file in (word for word in words if word.endswith(".yaml")):
            (tmp_path / file).touch()  # some options want a file that is there
        accept(words[1:])


def accept(words: list[str]) -> None:
    """Read the words as the command line would, and fail as it would; carry nothing out."""
    command = typer.main.get_command(application(words))
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("kalla", list(words))

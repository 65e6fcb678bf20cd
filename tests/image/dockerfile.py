"""Reads a Dockerfile: its stages and their instructions, as far as ours uses them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {"RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """The words of a COPY, or the list of an ENTRYPOINT or CMD."""
        if self.text.startswith("["):
            return [str(each) for each in json.loads(self.text)]
        return shlex.split(self.text)

    @property
    def variables(self) -> dict[str, str]:
        """Those of an ENV; they hold for what comes after it."""
        return dict(pair.split("=", 1) for pair in shlex.split(self.text))


@dataclass
class Stage:
    image: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, word: str) -> Instruction:
        return [each for each in self.instructions if each.word == word][-1]

    def environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self.instructions:
            if each.word == "ENV":
                found |= each.variables
        return found


def stages(path: Path) -> list[Stage]:
    """The stages in order; an instruction that is not known here is an error, not skipped."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\\\n", " ", text)
    found: list[Stage] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name or str(len(found))))
        elif word in KNOWN:
            found[-1].instructions.append(Instruction(word, rest.strip()))
        else:
            raise ValueError(f"{word} is not known here")
    return found

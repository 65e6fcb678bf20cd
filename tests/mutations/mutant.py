"""A mutant: one known flaw put back into a copy of the source, and the tests that notice it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = "tests/integration/work/"  # where most of the tests live

# A mutant must be wrong, not broken: text that does not even run proves nothing.
BROKEN = re.compile(
    r"psycopg\.errors\.(Syntax|Undefined|Ambiguous|InvalidColumnReference|DatatypeMismatch)\w*"
    r"|psycopg\.ProgrammingError|\b(Syntax|Indentation|Name|Import|Attribute)Error\b"
)
SECONDS = 240.0


@dataclass(frozen=True)
class Edit:
    """`file` is below src/kalla; `jobs.sql#claim` means the statement of that name."""

    file: str
    old: str
    new: str

    def apply(self, source: Path) -> None:
        name, _, statement = self.file.partition("#")
        path = source / "kalla" / name
        text = path.read_text("utf-8")
        start, end = _bounds(text, statement)
        found = text[start:end].count(self.old)
        assert found == 1, f"{self.file} has {found} times, not once: {self.old}"
        path.write_text(text[:start] + text[start:end].replace(self.old, self.new) + text[end:])


@dataclass(frozen=True)
class Mutant:
    """`trap` is its number in the design, where it has one."""

    flaw: str
    trap: int | None
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return self.flaw.replace(" ", "-")


@dataclass(frozen=True)
class Verdict:
    code: int
    output: str


def mutant(
    flaw: str,
    file: str,
    old: str,
    new: str,
    *tests: str,
    trap: int | None = None,
    also: tuple[tuple[str, str, str], ...] = (),
) -> Mutant:
    edits = [Edit(file, old, new), *[Edit(*each) for each in also]]
    return Mutant(
        flaw, trap, tuple(edits), tuple(test if "/" in test else HOME + test for test in tests)
    )


def run(mutant: Mutant | None, tests: tuple[str, ...], folder: Path, postgres: str) -> Verdict:
    """Run the tests against a copy of src/ with the flaw in it; without one, as it is."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    for edit in mutant.edits if mutant else ():
        edit.apply(source)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "--timeout=20"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "tests.mutations.origin"]
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "KALLA_MUTANT_SOURCE": str(source),
        "KALLA_TEST_POSTGRES": postgres,
        "HYPOTHESIS_PROFILE": "mutants",
    }
    done = subprocess.run(
        [*command, *plugins, *tests],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    shutil.rmtree(source)
    return Verdict(done.returncode, done.stdout)


def _bounds(text: str, statement: str) -> tuple[int, int]:
    if not statement:
        return 0, len(text)
    start = text.index(f"-- name: {statement}\n")
    end = text.find("-- name: ", start + 1)
    return start, len(text) if end < 0 else end

"""A mutant: one known flaw put back into a copy of the source, and the tests that notice it."""

from __future__ import annotations

import json
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
OPTIONS = (
    *("-x", "-q", "--tb=short", "--timeout=20"),
    *("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "tests.mutations.origin"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)

_SLOW = ("--timeout=60",)  # with a Kafka and a ClickHouse; the later option counts


@dataclass(frozen=True)
class Edit:
    """`file` is below src/kalla; `jobs.sql#claim` means the statement of that name."""

    file: str
    old: str
    new: str

    def occurrences(self, source: Path) -> int:
        name, _, statement = self.file.partition("#")
        text = (source / "kalla" / name).read_text("utf-8")
        start, end = _bounds(text, statement)
        return text[start:end].count(self.old)

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

    def misfits(self) -> list[str]:
        """Edits that no longer apply, and tests that are no longer there."""
        found = [
            f"{edit.file}: {edit.old}" for edit in self.edits if edit.occurrences(ROOT / "src") != 1
        ]
        for test in self.tests:
            file, _, name = test.partition("::")
            path = ROOT / (file if file.startswith("tests/") else HOME + file)
            definition = f"def {name.partition('[')[0]}("
            if not path.exists() or definition not in path.read_text("utf-8"):
                found.append(test)
        return found


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


class Bench:
    """Runs tests against a copy of src/: with a flaw in it, or as it is. One run at a time."""

    def __init__(self, folder: Path, postgres: str) -> None:
        self._folder = folder
        self._postgres = postgres
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.mutations.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, mutant: Mutant | None, tests: tuple[str, ...]) -> Verdict:
        source = self._folder / "src"
        shutil.copytree(ROOT / "src", source)
        try:
            for edit in mutant.edits if mutant else ():
                edit.apply(source)
            return self._pytest(source, tests)
        finally:
            shutil.rmtree(source)

    def _pytest(self, source: Path, tests: tuple[str, ...]) -> Verdict:
        output = self._folder / "output"
        asked = {
            "arguments": [
                *OPTIONS,
                *(_SLOW if any("/sinks/" in test for test in tests) else ()),
                *tests,
            ],
            "environment": {
                "PYTHONPATH": str(source),
                "KALLA_MUTANT_SOURCE": str(source),
                "KALLA_TEST_POSTGRES": self._postgres,
                "HYPOTHESIS_PROFILE": "mutants",
            },
            "output": str(output),
        }
        assert self._zygote.stdin
        assert self._zygote.stdout
        print(json.dumps(asked), file=self._zygote.stdin, flush=True)
        code = int(self._zygote.stdout.readline())
        return Verdict(code, output.read_text("utf-8"))

    def close(self) -> None:
        """Ends the zygote as soon as it has nothing to do."""
        with self._zygote as zygote:
            assert zygote.stdin
            zygote.stdin.close()


def _bounds(text: str, statement: str) -> tuple[int, int]:
    if not statement:
        return 0, len(text)
    start = text.index(f"-- name: {statement}\n")
    end = text.find("-- name: ", start + 1)
    return start, len(text) if end < 0 else end

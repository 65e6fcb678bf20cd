"""Loops are compiled once: who comes later loads them, from wherever they could be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kalla import machine_code
from kalla.machine_code import loop
from kalla.reconcile import loops

LOOPS = """
from kalla.machine_code import loop

@loop("int: i8 int")
def total(numbers, count):
    found = 0
    for row in range(count):
        found += numbers[row]
    return found
"""
SCRIPT = """
import sys
import numpy as np
from kalla import machine_code
machine_code.__file__ = {package!r}
made, make = [], machine_code._make
machine_code._make = lambda *given: made.append(1) or make(*given)
import loops_of_ours
{then}
assert loops_of_ours.total(np.arange(5), 5) == 10
assert "numba" not in sys.modules
print("made" if made else "found")
"""


class Package:
    """A package in a folder of its own, and processes that use its loops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "loops_of_ours.py").write_text(LOOPS, encoding="ascii")
        (folder / "machine_code.py").write_text("", encoding="ascii")

    @property
    def kept(self) -> Path:
        return self.folder / "__pycache__"

    def use(self, folder: Path | None = None, then: str = "", **environment: str) -> str:
        """In a process that starts in a folder, and does something before it calls a loop."""
        script = SCRIPT.format(package=str(self.folder / "machine_code.py"), then=then)
        done = subprocess.run(
            [sys.executable, "-B", "-P", "-c", script],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": str(self.folder)} | environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def test_a_process_that_finds_the_code_needs_no_compiler(tmp_path: Path) -> None:
    package = Package(tmp_path)
    assert package.use() == "made"
    assert package.use() == "found"
    assert [file.suffix for file in package.kept.iterdir()] == [".loops"]


def test_loops_that_were_changed_are_compiled_anew(tmp_path: Path) -> None:
    package = Package(tmp_path)
    assert package.use() == "made"
    with (tmp_path / "loops_of_ours.py").open("a", encoding="ascii") as file:
        file.write("# another\n")
    assert package.use() == "made"


def test_what_no_version_uses_any_more_goes_but_for_the_one_before(tmp_path: Path) -> None:
    package = Package(tmp_path)
    package.kept.mkdir()
    others = "another.module-0.loops", "loops_of_ours.py"
    for name in ("loops_of_ours-1.loops", "loops_of_ours-2.loops", *others):
        (package.kept / name).write_text("of versions before", encoding="ascii")
    os.utime(package.kept / "loops_of_ours-2.loops", (1, 1))
    assert package.use() == "made"
    left = {file.name for file in package.kept.iterdir()}
    assert {*others, "loops_of_ours-1.loops"} < left
    assert len(left) == 4
    assert "loops_of_ours-2.loops" not in left


def test_where_the_package_cannot_be_written_the_user_keeps_the_code(tmp_path: Path) -> None:
    package = Package(tmp_path)
    package.kept.write_text("not a folder", encoding="ascii")
    cache = tmp_path / "cache"
    assert package.use(XDG_CACHE_HOME=str(cache)) == "made"
    assert package.use(XDG_CACHE_HOME=str(cache)) == "found"
    assert [file.suffix for file in (cache / "kalla").iterdir()] == [".loops"]


def test_where_nothing_can_be_written_it_is_made_for_the_process(tmp_path: Path) -> None:
    package = Package(tmp_path)
    package.kept.write_text("not a folder", encoding="ascii")
    assert package.use(XDG_CACHE_HOME=str(package.kept)) == "made"


def test_what_lies_in_the_folder_is_not_what_is_compiled(tmp_path: Path) -> None:
    """As it may where somebody else writes, or in another version's checkout."""
    package, elsewhere = Package(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = LOOPS.replace("+=", "-=")
    (elsewhere / "loops_of_ours.py").write_text(other, encoding="ascii")
    (elsewhere / "numbers.py").write_text("raise SystemExit('not yours')", encoding="ascii")
    assert package.use(elsewhere) == "made"


def test_a_module_that_changed_since_it_was_imported_is_not_called(tmp_path: Path) -> None:
    package = Package(tmp_path)
    edit = "import pathlib; pathlib.Path(loops_of_ours.__file__).open('a').write('# more')"
    with pytest.raises(AssertionError, match="has changed since this process imported it"):
        package.use(then=edit)


def test_a_file_that_is_not_ours_to_read_is_passed_over(tmp_path: Path) -> None:
    """Root reads any file: so it is a folder."""
    package = Package(tmp_path)
    assert package.use() == "made"
    (kept,) = package.kept.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o644
    kept.unlink()
    kept.mkdir()
    assert package.use(XDG_CACHE_HOME=str(tmp_path / "cache")) == "made"
    assert package.use(XDG_CACHE_HOME=str(tmp_path / "cache")) == "found"


def test_a_file_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    package = Package(tmp_path)
    assert package.use() == "made"
    (kept,) = package.kept.iterdir()
    kept.write_bytes(kept.read_bytes()[:-100])
    assert package.use() == "made"
    assert package.use() == "found"


@pytest.mark.parametrize(
    ("numbers", "count", "told"),
    [
        (np.zeros(2), 2, "f8 as n"),
        (np.arange(4)[::2], 2, "i8 as n"),
        (np.arange(2).astype(">i8"), 2, "i8 as n"),
        (np.frombuffer(bytes(17), np.int64, 2, 1), 2, "i8 as n"),
        (np.arange(2), 2**64, "18446744073709551616 as int"),
        (np.arange(2), True, "True as int"),
    ],
    ids=["floats", "gaps", "the other end first", "not aligned", "too large", "a flag"],
)
def test_what_a_loop_cannot_take_is_refused(
    numbers: npt.NDArray[Any], count: int, told: str
) -> None:
    with pytest.raises(TypeError, match=f"mark cannot take {told}"):
        loops.mark(numbers, count, 0, loops.marks(3))


def test_what_is_read_only_is_not_written_to() -> None:
    marks = loops.marks(3)
    marks.flags.writeable = False
    with pytest.raises(TypeError, match="cannot take u8 as U8"):
        loops.mark(np.arange(2), 2, 0, marks)


def test_every_way_of_calling_a_loop_is_known_beforehand() -> None:
    @loop("int: n int I8 u1")
    def some(numbers: object, count: int, out: object, flags: object) -> int:
        return 0

    written = machine_code._written[__name__]["some"]
    assert list(written.ways()) == [(kind, "int", "i8", "u1") for kind in ("i4", "i8", "u4")]
    del machine_code._written[__name__]

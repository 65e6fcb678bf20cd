"""Which places a registered one covers: what lies in it and no more, whatever the spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalla.reconcile.registry import uri_coverage
from kalla.reconcile.registry.uri_coverage import Refused, covered
from kalla.storage.path_patterns import matches

BANK = "postgresql://reader@db.internal/bank"


@pytest.mark.parametrize(
    "asked",
    [
        BANK,
        "postgresql://db.internal/bank",
        "postgres://reader@DB.internal:5432/bank",
        "postgresql://reader@db.internal/bank/",
        "postgresql://reader@db.internal/b%61nk",
    ],
)
def test_a_database_is_the_same_however_it_is_spelled(asked: str) -> None:
    assert covered(BANK, asked) == BANK


@pytest.mark.parametrize(
    "asked",
    [
        "postgresql://reader@db.internal/other",
        "postgresql://reader@db.internal:5433/bank",
        "postgresql://reader@db.internal.evil.example/bank",
        "postgresql://reader@evil.example/bank",
        "postgresql://writer@db.internal/bank",
        "postgresql://reader@db.internal/bank?host=evil.example",
        "postgresql://reader@db.internal,evil.example/bank",
        "postgresql://reader@db.internal:99999/bank",
        "postgresql://reader@[db.internal/bank",
        "postgresql:///bank",
        "db.internal/bank",
        "s3://db.internal/bank",
        "",
    ],
)
def test_another_database_is_not_covered(asked: str) -> None:
    assert covered(BANK, asked) is None


@pytest.mark.parametrize(
    ("registered", "asked", "covers"),
    [
        ("s3://books/in", "s3://books/in", True),
        ("s3://books/in/", "s3://books/in/may/a.csv", True),
        ("s3://books/in", "s3://books/in/*.csv", True),
        ("s3://books", "s3://books/any/thing", True),
        ("s3://books/*/a.csv", "s3://books/may/a.csv", True),
        ("s3://books/*/a.csv", "s3://books/*/a.csv", True),
        ("s3://books/**/a.csv", "s3://books/x/y/z/a.csv", True),
        ("s3://books/_*/.a.csv", "s3://books/_x/.a.csv", True),
        ("s3://books/*", "s3://books/.a.csv", False),
        ("s3://books/*", "s3://books/_a.csv", False),
        ("s3://books/**/a.csv", "s3://books/.x/a.csv", False),
        ("s3://books/in/**", "s3://books/in", False),
        ("s3://books/in", "s3://books/inside.csv", False),
        ("s3://books/in", "s3://Books/in/a.csv", False),
        ("s3://books/in", "s3://books", False),
        ("s3://books/in", "s3://books/*", False),
        ("s3://books/in", "s3://books/i*/a.csv", False),
        ("s3://books/in", "s3://books/in/../out/a.csv", False),
        ("s3://books/in", "s3://books/in/./a.csv", False),
        ("s3://books/in", "s3://books//in/a.csv", False),
        ("s3://books/*/a.csv", "s3://books/x/y/a.csv", False),
        ("s3://books/*/a.csv", "s3://books/**/a.csv", False),
        ("s3://books/in", "s3://evil/in", False),
        ("s3://books/in", "/books/in", False),
    ],
)
def test_keys_of_an_object_store_are_compared_part_by_part(
    registered: str, asked: str, covers: bool
) -> None:
    found = covered(registered, asked)
    assert (found is not None) == covers
    if "*" not in registered:
        assert found in (asked, None)


def test_a_key_below_a_glob_is_read_as_an_object_and_never_as_a_folder() -> None:
    """Of a key alone nobody can tell; a pattern names objects only."""
    found = covered("s3://books/in/*", "s3://books/in/may.parquet")
    assert found == "s3://books/in/may.parque[t]"
    key, pattern = ["books", "in", "may.parquet"], found.removeprefix("s3://").split("/")
    assert matches(pattern, key, 2)
    assert not matches(pattern, [*key, "part-0.parquet"], 2)
    assert covered("s3://books/*", "s3://books/may (1)") == "s3://books/may ([1])"
    assert covered("s3://books/*", "s3://books/!") is None


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """`in` is what is registered; `out` is what must stay out of reach."""
    for name in ("in/may/a.csv", "in/b.csv", "in/note.txt", "inside/c.csv", "out/secret.csv",
                 "in/.env", "in/_old/c.csv"):  # fmt: skip
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("id\n")
    return tmp_path


@pytest.mark.parametrize(
    ("registered", "asked"),
    [
        ("in", "in"),
        ("in", "in/"),
        ("in", "in/b.csv"),
        ("in", "in/may"),
        ("in", "in/may/a.csv"),
        ("in", "in/not/yet/there.csv"),
        ("in", "in/**/*.csv"),
        ("in/b.csv", "in/b.csv"),
        ("in/*.csv", "in/b.csv"),
        ("in/*.csv", "in/*.csv"),
        ("in/**/*.csv", "in/may/a.csv"),
        ("in/_*/*.csv", "in/_old/c.csv"),
        ("in/.*", "in/.env"),
    ],
)
def test_a_folder_covers_what_is_in_it(disk: Path, registered: str, asked: str) -> None:
    expected = str(disk / asked)
    assert covered(f"{disk}/{registered}", f"{disk}/{asked}") == expected
    assert covered(f"file://{disk}/{registered}", f"file://{disk}/{asked}") == expected


@pytest.mark.parametrize(
    ("registered", "asked"),
    [
        ("in", "inside/c.csv"),
        ("in", "in*/c.csv"),
        ("in", "out/secret.csv"),
        ("in", ""),
        ("in", "in/../out/secret.csv"),
        ("in", "in/may/../../out/secret.csv"),
        ("in", "*/secret.csv"),
        ("in", "in\0"),
        ("in", "in/" + "x" * 5000),
        ("in/b.csv", "in/note.txt"),
        ("in/b.csv", "in"),
        ("in/*.csv", "in/note.txt"),
        ("in/*.csv", "in/may/a.csv"),
        ("in/*.csv", "in/*"),
        ("in/*.csv", "in"),
        ("in/*", "in/.env"),
        ("in/*", "in/may"),
        ("in/**", "in/may"),
        ("in/**/*.csv", "in/_old/c.csv"),
        ("in/*", "in/_old"),
    ],
)
def test_a_folder_covers_nothing_else(disk: Path, registered: str, asked: str) -> None:
    assert covered(f"{disk}/{registered}", f"{disk}/{asked}") is None
    assert covered(f"{disk}/{registered}", f"file://{disk}/{asked}") is None


@pytest.mark.parametrize("asked", ["in/b.csv", "b.csv", "~/in", "file://in/b.csv", "FILE:///in"])
def test_a_relative_path_is_not_covered(
    disk: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(disk)
    assert covered(str(disk), asked) is None


def test_an_encoded_way_out_is_seen(disk: Path) -> None:
    assert covered(f"{disk}/in", f"file://{disk}/in/%2e%2e/out/secret.csv") is None


def test_a_link_that_leads_out_is_not_followed(disk: Path) -> None:
    (disk / "in/link.csv").symlink_to(disk / "out/secret.csv")
    (disk / "in/folder").symlink_to(disk / "out")
    assert covered(f"{disk}/in", f"{disk}/in/link.csv") is None
    assert covered(f"{disk}/in", f"{disk}/in/folder/secret.csv") is None
    assert covered(f"{disk}/in/*.csv", f"{disk}/in/link.csv") is None
    for asked in ("in", "in/*.csv", "in/**/*.csv", "in/fold*/secret.csv"):
        with pytest.raises(Refused, match="is a link that leads out"):
            covered(f"{disk}/in", f"{disk}/{asked}")


def test_a_link_inside_is_read_where_it_leads(disk: Path) -> None:
    """Not where it stands: it could lead elsewhere by the time the rows are read."""
    (disk / "in/link.csv").symlink_to("b.csv")
    (disk / "way").symlink_to(disk / "in")
    assert covered(f"{disk}/in", f"{disk}/in/link.csv") == f"{disk}/in/b.csv"
    assert covered(f"{disk}/in", f"{disk}/way/b.csv") == f"{disk}/in/b.csv"
    assert covered(f"{disk}/way", f"{disk}/in/b.csv") == f"{disk}/in/b.csv"
    assert covered(f"{disk}/way", f"{disk}/way/*.csv") == f"{disk}/in/*.csv"


def test_links_in_a_circle_lead_nowhere(disk: Path) -> None:
    (disk / "in/one").symlink_to("two")
    (disk / "in/two").symlink_to("one")
    assert covered(f"{disk}/in", f"{disk}/in/one/a.csv") is None
    assert covered(f"{disk}/in", f"{disk}/in") is None


def test_a_name_with_signs_is_a_name_where_there_is_such_a_file(disk: Path) -> None:
    (disk / "in/a[1].csv").write_text("id\n")
    assert covered(f"{disk}/in/a[1].csv", f"{disk}/in/a[1].csv") == f"{disk}/in/a[1].csv"


def test_a_folder_too_large_to_look_through_is_refused(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uri_coverage, "_MOST_ENTRIES", 2)
    with pytest.raises(Refused, match="holds more than 2 entries"):
        covered(f"{disk}/in", f"{disk}/in")


def test_a_pattern_of_many_stars_is_decided_at_once() -> None:
    registered = "s3://books/" + "**/a/" * 300 + "b"
    assert covered(registered, "s3://books/" + "a/" * 900 + "c") is None

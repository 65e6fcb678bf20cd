"""Files on this machine by URL; the same on S3 is in tests/integration/test_storage_s3.py."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from pydantic import SecretStr

from kalla import settings
from kalla.errors import InvalidInput, NotFound, Unavailable
from kalla.storage import LOCAL, Storage, join
from kalla.storage.path_patterns import matches
from kalla.storage.storage_failures import meaning

TREE = (
    "a.csv",
    "b.txt",
    ".hidden.csv",
    "_tmp/c.csv",
    "deep/d.csv",
    "deep/er/e.csv",
    "deep/.x/f.csv",
)


PARTS = ("*", "**", "?.csv", "*.csv", "[ab].*", "deep", "d*", "er", "_*", "_tmp", ".*", "**.csv")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(tree: Path, url: str) -> list[str]:
    return [str(Path(each.url).relative_to(tree)) for each in LOCAL.files(url)]


def test_a_file_is_found_by_path_and_by_url(tree: Path) -> None:
    assert names(tree, str(tree / "a.csv")) == ["a.csv"]
    assert names(tree, (tree / "a.csv").as_uri()) == ["a.csv"]
    assert LOCAL.size(str(tree / "a.csv")) == len("a.csv")


def test_a_folder_is_all_its_files_but_the_hidden_ones(tree: Path) -> None:
    assert names(tree, str(tree)) == ["a.csv", "b.txt", "deep/d.csv", "deep/er/e.csv"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.csv", ["a.csv"]),
        ("?.csv", ["a.csv"]),
        ("[ab].*", ["a.csv", "b.txt"]),
        ("**/*.csv", ["a.csv", "deep/d.csv", "deep/er/e.csv"]),
        ("deep/**", ["deep/d.csv", "deep/er/e.csv"]),
        ("*/*.csv", ["deep/d.csv"]),
        ("_tmp/*.csv", ["_tmp/c.csv"]),
        ("_*/*.csv", ["_tmp/c.csv"]),
        (".*.csv", [".hidden.csv"]),
    ],
)
def test_a_pattern_names_files(tree: Path, pattern: str, wanted: list[str]) -> None:
    assert names(tree, str(tree / pattern)) == wanted


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5))
@settings_of_hypothesis(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_pattern_names_the_same_files_where_nothing_but_a_listing_can_be_had(
    tree: Path, parts: list[str]
) -> None:
    pattern = [*str(tree).split("/"), *parts]
    plain = len(str(tree).split("/"))
    every = [str(each) for each in tree.rglob("*") if each.is_file()]
    listed = [each for each in every if matches(pattern, each.split("/"), plain)]
    try:
        found = [each.url for each in LOCAL.files("/".join(pattern))]
    except NotFound:
        found = []
    if not (tree / "/".join(parts)).exists():  # a plain name is not a pattern
        assert found == sorted(listed)


@pytest.mark.parametrize(
    ("said", "meant", "why"),
    [
        ("AWS Error SLOW_DOWN during GetObject operation: Please wait", Unavailable, "not answer"),
        ("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation: No response body.",
         InvalidInput, "storage.s3_region"),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No.", InvalidInput,
         "denies access"),
        ("AWS Error NO_SUCH_KEY during GetObject operation: gone", NotFound, "does not exist"),
        ("AWS Error INTERNAL_FAILURE during PutObject operation: oh", Unavailable, "not answer"),
    ],
)  # fmt: skip
def test_what_s3_says_is_told_in_a_sentence(said: str, meant: type, why: str) -> None:
    told = meaning("s3://bucket/a.csv", OSError(f"When reading: {said}"))
    assert isinstance(told, meant)
    assert why in str(told)


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tree: Path) -> None:
    (tree / "a[1].csv").write_text("")
    assert names(tree, str(tree / "a[1].csv")) == ["a[1].csv"]


@pytest.mark.parametrize("name", ["none.csv", "none/none.csv", "none-*.csv", "empty"])
def test_what_is_not_there_is_not_found(tree: Path, name: str) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(NotFound, match=name.replace("*", ".*")):
        LOCAL.files(str(tree / name))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("gs://bucket/a.csv", "gs:// is not a place for files"),
        ("https://host/a.csv", "https:// is not a place for files"),
        ("file://host/a.csv", "another machine"),
        ("s3:///a.csv", "names no bucket"),
        ("s3://bucket/a.csv", "not set up"),
    ],
)
def test_other_urls_are_refused_with_a_sentence(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        LOCAL.files(url)


def test_a_link_into_a_folder_above_is_not_followed(tree: Path) -> None:
    (tree / "deep" / "loop").symlink_to(tree)
    (tree / "deep" / "up").symlink_to(tree.parent)
    wanted = ["a.csv", "deep/d.csv", "deep/er/e.csv"]
    assert names(tree, str(tree)) == ["a.csv", "b.txt", *wanted[1:]]
    assert names(tree, str(tree / "**/*.csv")) == wanted


def test_a_link_to_a_folder_elsewhere_is_followed(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "g.csv").write_text("")
    (tree / "deep" / "link").symlink_to(other)
    for url in ("deep", "deep/**/*.csv"):
        assert "deep/link/g.csv" in names(tree, str(tree / url))
    assert names(tree, str(tree / "deep/link")) == ["deep/link/g.csv"]


@pytest.mark.parametrize("target", ["nowhere.csv", "lost.csv"], ids=["dangling", "of itself"])
@pytest.mark.parametrize("url", ["", "*.csv", "**"])
def test_a_link_that_leads_nowhere_is_named(tree: Path, target: str, url: str) -> None:
    (tree / "lost.csv").symlink_to(tree / target)
    with pytest.raises(InvalidInput, match=r"lost\.csv is a link that leads nowhere"):
        LOCAL.files(str(tree / url))
    assert names(tree, str(tree / "deep")) == ["deep/d.csv", "deep/er/e.csv"]
    (tree / "lost.csv").rename(tree / ".lost.csv")
    assert LOCAL.files(str(tree / url))


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InvalidInput, match="neither a file nor a folder"):
        LOCAL.files(str(tmp_path / "pipe.csv"))
    with pytest.raises(NotFound):
        LOCAL.files(str(tmp_path / "*.csv"))


@pytest.mark.parametrize("url", ["", "*.csv"])
def test_a_name_that_is_no_utf_8_is_told_as_well_as_it_can_be(tmp_path: Path, url: str) -> None:
    Path(os.fsdecode(bytes(tmp_path / "caf") + b"\xe9.csv")).touch()
    with pytest.raises(InvalidInput, match=r"caf.\.csv is not UTF-8: rename"):
        Storage().files(str(tmp_path / url))
    (tmp_path / "b.txt").touch()
    assert len(Storage().files(str(tmp_path / "*.txt"))) == 1


def test_a_link_that_leads_nowhere_is_not_found_and_a_loop_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "none.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    with pytest.raises(NotFound, match=r"link\.csv"):
        LOCAL.files(str(tmp_path / "link.csv"))
    with pytest.raises((InvalidInput, NotFound), match=r"loop\.csv"):
        LOCAL.files(str(tmp_path / "loop.csv"))


def test_text_replaces_text_and_leaves_nothing_else(tmp_path: Path) -> None:
    url = join(str(tmp_path), "new", "metadata.json")
    for text in ("one", "zwölf"):
        LOCAL.write_text(url, text)
        assert LOCAL.read_text(url) == text
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["metadata.json"]


def test_a_folder_is_put_whole_and_removed(tree: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (tmp_path / "mine").mkdir()
    for name in ("x.txt", ".y", "deep/z"):
        (tmp_path / "mine" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text(name)
    LOCAL.put(tmp_path / "mine", str(there))
    found = {
        str(each.relative_to(there)): each.read_text()
        for each in there.rglob("*")
        if each.is_file()
    }
    assert found == {"x.txt": "x.txt", ".y": ".y", "deep/z": "deep/z"}
    assert LOCAL.holds(str(there))
    LOCAL.remove(str(there))
    LOCAL.remove(str(there))
    assert not LOCAL.holds(str(there))


def test_a_folders_own_files_are_put_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matched/a", "metadata.json", "unmatched/b"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "run" / name).write_text(name)
    copied: list[str] = []
    monkeypatch.setattr("kalla.storage.storage._copy", lambda _, path, *__: copied.append(path))
    LOCAL.put(tmp_path / "run", str(tmp_path / "there"))
    assert [Path(each).name for each in copied] == ["a", "b", "metadata.json"]


def test_a_whole_disk_is_not_removed() -> None:
    with pytest.raises(InvalidInput, match="whole disk"):
        LOCAL.remove("/")


def test_a_file_that_is_written_anew_has_another_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1")
    before = LOCAL.info(str(path)).mark
    path.write_text("2")
    os.utime(path, ns=(0, 10**18))
    after = LOCAL.info(str(path)).mark
    assert before["file"] == after["file"] == str(path)
    assert before != after


def test_keys_travel_but_do_not_show() -> None:
    given = settings.Storage(
        s3_endpoint="http://127.0.0.1:9",
        s3_access_key=SecretStr("akey"),
        s3_secret_key=SecretStr("skey"),
    )
    storage = Storage.of(given)
    assert "akey" not in repr(storage)
    assert "skey" not in repr(storage)
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert again == storage
    assert again.s3.secret_key.get_secret_value() == "skey"


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "a.csv"
    path.parent.mkdir()
    path.write_text("id\n1\n")
    path.parent.chmod(0)
    try:
        with as_nobody(), pytest.raises(InvalidInput, match="Permission denied"):
            LOCAL.files(str(path))
    finally:
        path.parent.chmod(0o700)


@contextmanager
def as_nobody() -> Iterator[None]:
    """For root nothing is forbidden."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)

"""Secrets: where they are looked for, that they are stored sealed, and that none ever shows."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from kalla.cli.main import main
from kalla.errors import InvalidInput, InvalidSettings, NotFound, Unavailable
from kalla.local import ports
from kalla.redaction import scrub
from kalla.secrets import Vault, key_file, new_key
from kalla.settings import Database, Secrets, Settings
from tests.servers import PostgresServer

VALUE = "hunter2 über alles"
KEY = new_key()

Open = Callable[..., Vault]


@pytest.fixture(scope="module")
def store_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = postgres_server.create(migrated_template)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop(name)


@pytest.fixture
def vault(store_url: str, tmp_path: Path) -> Iterator[Open]:
    def opened(
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
        key: str = KEY,
        url: str = store_url,
    ) -> Vault:
        settings = Settings(
            data_dir=tmp_path,
            database=Database(url=SecretStr(url), connect_timeout=1),
            secrets=Secrets(key=SecretStr(key), folder=str(folder or "")),
        )
        return Vault(settings, environment or {})

    yield opened
    execute(store_url, "DELETE FROM kalla.secrets")


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_the_environment_comes_before_the_folder_and_the_folder_before_the_store(
    vault: Open, tmp_path: Path
) -> None:
    environment = {"KALLA_SECRET_BANK_OF_X_1": "from the environment"}
    (tmp_path / "bank-of.x_1").write_text("from the folder\n")
    vault().put("bank-of.x_1", SecretStr("from the store"), by="ann")

    def found(*places: object) -> str:
        return vault(*places).resolve("bank-of.x_1").get_secret_value()

    assert found(environment, tmp_path) == "from the environment"
    assert found({}, tmp_path) == "from the folder"
    assert found({}, None) == "from the store"


def test_a_reference_is_as_good_as_a_name(vault: Open) -> None:
    assert vault({"KALLA_SECRET_BANK": "x"}).resolve("secret://bank").get_secret_value() == "x"


def test_a_missing_secret_names_the_three_places(vault: Open, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as raised:
        vault(folder=tmp_path).resolve("bank")
    said = str(raised.value)
    assert "KALLA_SECRET_BANK is not set" in said
    assert f"{tmp_path} holds no file bank" in said
    assert "`kalla secret set bank`" in said
    assert scrub(said) == said, "a sentence about a secret must survive the masking of secrets"
    with pytest.raises(NotFound, match=r"secrets\.folder is not set"):
        vault().resolve("bank")


def test_what_is_stored_is_sealed_and_comes_back_whole(vault: Open, store_url: str) -> None:
    for _ in range(2):
        vault().put("bank", SecretStr(VALUE), by="ann")
        vault().put("twin", SecretStr(VALUE), by="bob")
    assert vault().resolve("bank").get_secret_value() == VALUE
    with psycopg.connect(store_url) as connection:
        rows = connection.execute("SELECT sealed FROM kalla.secrets").fetchall()
    sealed = [bytes(row[0]) for row in rows]
    assert sealed[0] != sealed[1], "the same value must not be seen to be the same"
    assert all(VALUE.encode() not in each for each in sealed)
    assert [(each.name, each.created_by) for each in vault().listing()] == [
        ("bank", "ann"),
        ("twin", "bob"),
    ]


def test_a_wrong_key_is_told_and_not_tried(vault: Open) -> None:
    vault().put("bank", SecretStr(VALUE), by="ann")
    with pytest.raises(InvalidSettings, match=r"secrets\.key: is not the one that the secret"):
        vault(key=new_key()).resolve("bank")
    with pytest.raises(InvalidSettings, match="there is no key for the encrypted store"):
        vault(key="").resolve("bank")
    with pytest.raises(InvalidSettings, match="there is no key for the encrypted store"):
        vault(key="").put("bank", SecretStr(VALUE), by="ann")


def test_the_key_may_be_in_the_data_folder(vault: Open, tmp_path: Path) -> None:
    vault().put("bank", SecretStr(VALUE), by="ann")
    key_file(Settings(data_dir=tmp_path)).write_text(KEY + "\n")
    assert vault(key="").resolve("bank").get_secret_value() == VALUE


@pytest.mark.parametrize("key", ["short", "c2hvcnQ=", "é" * 44, "=" * 44])
def test_a_key_that_is_none_is_refused_without_being_shown(vault: Open, key: str) -> None:
    with pytest.raises(InvalidSettings, match="must be 32 bytes in base64") as raised:
        vault(key=key).put("bank", SecretStr(VALUE), by="ann")
    assert key not in str(raised.value)


def test_a_value_moved_under_another_name_does_not_open(vault: Open, store_url: str) -> None:
    """Who can write to the table must not be able to send the bank's password somewhere else."""
    vault().put("bank", SecretStr(VALUE), by="ann")
    execute(store_url, "UPDATE kalla.secrets SET name = 'mallory'")
    with pytest.raises(InvalidSettings, match="is damaged in the encrypted store"):
        vault().resolve("mallory")
    execute(store_url, "UPDATE kalla.secrets SET name = 'bank', sealed = 'x'")
    with pytest.raises(InvalidSettings, match="is damaged in the encrypted store"):
        vault().resolve("bank")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/passwd", "a\0b", "é", "a" * 201])
def test_a_name_that_could_lead_elsewhere_is_refused(
    vault: Open, tmp_path: Path, name: str
) -> None:
    for act in (
        lambda: vault(folder=tmp_path).resolve(name),
        lambda: vault().put(name, SecretStr(VALUE), by="ann"),
        lambda: vault().remove(name),
    ):
        with pytest.raises(InvalidInput, match="1 to 200 letters, digits, _"):
            act()


@pytest.mark.parametrize("value", ["", "x" * 70_000])
def test_a_value_of_no_or_too_great_length_is_refused(vault: Open, value: str) -> None:
    with pytest.raises(InvalidInput, match="must have 1 to 65536 bytes"):
        vault().put("bank", SecretStr(value), by="ann")


def test_a_file_that_is_no_text_is_refused_without_being_shown(vault: Open, tmp_path: Path) -> None:
    (tmp_path / "bank").write_bytes(b"hunter2\xff\xfe")
    with pytest.raises(InvalidSettings, match="is not text in UTF-8") as raised:
        vault(folder=tmp_path).resolve("bank")
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    (tmp_path / "huge").write_bytes(b"x" * 70_000)
    with pytest.raises(InvalidSettings, match="more than 65536 bytes"):
        vault(folder=tmp_path).resolve("huge")


def test_a_store_that_is_away_is_another_matter_than_a_missing_secret(vault: Open) -> None:
    nobody = f"postgresql://kalla:{VALUE.split()[0]}@127.0.0.1:{ports.choose_free()}/kalla"
    with pytest.raises(Unavailable, match="the encrypted store cannot be asked") as raised:
        vault(url=nobody).resolve("bank")
    assert "KALLA_SECRET_BANK is not set" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert vault({"KALLA_SECRET_BANK": "x"}, url=nobody).resolve("bank").get_secret_value() == "x"


def test_a_database_that_is_not_migrated_says_so(vault: Open, empty_database_url: str) -> None:
    with pytest.raises(Unavailable, match="`kalla migrate`"):
        vault(url=empty_database_url).listing()


Pipe = io.TextIOWrapper


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


class Terminal:
    """`kalla secret` as it is typed, with what comes from standard input."""

    def __init__(self, url: str, folder: Path) -> None:
        self._environment = {"KALLA_DATABASE_URL": url, "KALLA_SECRETS_KEY": KEY}
        self._folder = folder

    def __call__(
        self, *arguments: str, given: bytes = b"", keyboard: bool = False
    ) -> tuple[int, str]:
        output = io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(output),
            redirect_stderr(output),
        ):
            patch.chdir(self._folder)
            patch.setattr(sys, "argv", ["kalla", "secret", *arguments])
            patch.setattr(sys, "stdin", Keyboard() if keyboard else Pipe(io.BytesIO(given)))
            for name in [name for name in os.environ if name.startswith("KALLA_")]:
                patch.delenv(name)
            for name, value in self._environment.items():
                patch.setenv(name, value)
            try:
                main()
            except SystemExit as ending:
                return int(ending.code or 0), output.getvalue()
        return 0, output.getvalue()


@pytest.fixture
def terminal(store_url: str, tmp_path: Path, vault: Open) -> Terminal:
    return Terminal(store_url, tmp_path)


def test_a_secret_is_set_from_a_pipe_listed_and_removed(terminal: Terminal, vault: Open) -> None:
    code, said = terminal("set", "bank", given=f"{VALUE}\n".encode())
    assert (code, said) == (0, "The secret bank is stored: use it as secret://bank.\n")
    assert vault().resolve("bank").get_secret_value() == VALUE
    code, listed = terminal("list")
    assert code == 0
    assert "bank" in listed
    assert VALUE not in listed + terminal("list", "--format", "json")[1]
    assert terminal("remove", "bank") == (0, "The secret bank is removed.\n")
    assert "No secrets are stored" in terminal("list")[1]
    assert terminal("remove", "bank")[0] == 2


def test_a_person_is_asked_for_the_value_and_it_is_not_shown(
    terminal: Terminal, vault: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def getpass(prompt: str) -> str:
        asked.append(prompt)
        return VALUE

    monkeypatch.setattr("getpass.getpass", getpass)
    code, said = terminal("set", "bank", keyboard=True)
    assert code == 0
    assert asked == ["Value of bank (not shown): "]
    assert VALUE not in said
    assert vault().resolve("bank").get_secret_value() == VALUE


def test_a_secret_is_never_an_argument(terminal: Terminal) -> None:
    code, said = terminal("set", "bank", VALUE)
    assert code == 2
    assert "No secrets are stored" in terminal("list")[1]
    assert "hunter2" not in said


@pytest.mark.parametrize("given", [b"", b"\n", b"\xff\xfe", b"x" * 70_000])
def test_what_is_no_secret_is_refused_with_a_sentence(terminal: Terminal, given: bytes) -> None:
    code, said = terminal("set", "bank", given=given)
    assert code == 2
    assert said.startswith("value: ")
    assert "Traceback" not in said

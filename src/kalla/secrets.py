"""Secrets by name: from the environment, a mounted file or the encrypted store in Postgres.

Secrets are resolved at run time; nothing here writes a value anywhere else.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import psycopg
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from psycopg.rows import DictRow, dict_row
from pydantic import SecretStr

from kalla.database import unanswered
from kalla.errors import InvalidInput, InvalidSettings, NotFound, Problem, Unavailable
from kalla.settings import Settings
from kalla.statements import load

sql = load("kalla", "secrets.sql")

LARGEST_BYTES = 64 * 1024

_NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9_.-]{1,200}")
_SCHEME = "secret://"
_KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True)
class SecretRecord:
    """A stored secret as `kalla secret list` shows it: everything but the value."""

    name: str
    key_id: str
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


class Vault:
    """The three places of secrets. Blocking, and safe to share between threads."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._environment = os.environ if environment is None else environment

    def resolve(self, name: str) -> SecretStr:
        """The value of `name` or `secret://name`; of several places the first one counts."""
        name = valid_name(name.removeprefix(_SCHEME))
        value = self._environment.get(variable_of(name))
        if value is None:
            value = self._from_folder(name)
        return SecretStr(self._from_store(name) if value is None else value)

    def put(self, name: str, value: SecretStr, by: str) -> None:
        """Store a secret, in place of the one of that name if there is one."""
        content = value.get_secret_value().encode()
        if not 0 < len(content) <= LARGEST_BYTES:
            raise InvalidInput(
                Problem("value", f"must have 1 to {LARGEST_BYTES} bytes, got {len(content)}")
            )
        key = self._key()
        if key is None:
            raise InvalidSettings(Problem("secrets.key", _no_key(self._settings)))
        row = {
            "name": valid_name(name),
            "key_id": _key_id(key),
            "sealed": _seal(key, name, content),
            "by": by,
        }
        with self._connection() as connection:
            connection.execute(sql.put, row)

    def listing(self) -> list[SecretRecord]:
        """The secrets of the encrypted store, by name."""
        with self._connection() as connection:
            return [SecretRecord(**row) for row in connection.execute(sql.listing).fetchall()]

    def remove(self, name: str) -> None:
        with self._connection() as connection:
            row = connection.execute(sql.remove, {"name": valid_name(name)}).fetchone()
        if row is None:
            raise NotFound(f"there is no stored secret {name!r}: `kalla secret list` shows them")

    def _from_folder(self, name: str) -> str | None:
        folder = self._settings.secrets.folder
        if not folder:
            return None
        path = Path(folder) / name
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidSettings(Problem(str(path), f"cannot be read: {reason}")) from None
        if len(content) > LARGEST_BYTES:
            raise InvalidSettings(Problem(str(path), f"has more than {LARGEST_BYTES} bytes"))
        return _text(content, str(path)).removesuffix("\n").removesuffix("\r")

    def _from_store(self, name: str) -> str:
        elsewhere = f"{variable_of(name)} is not set, {self._folder_said(name)}"
        try:
            with self._connection() as connection:
                row = connection.execute(sql.get, {"name": name}).fetchone()
        except Unavailable as error:
            raise Unavailable(
                f"the secret {name!r} was not found: {elsewhere}, and the encrypted store cannot "
                f"be asked ({error})"
            ) from None
        if row is None:
            raise NotFound(
                f"there is no secret {name!r}: {elsewhere}, and the encrypted store does not have "
                f"it: run `kalla secret set {name}`"
            )
        key = self._key()
        if key is None:
            raise InvalidSettings(
                Problem(
                    "secrets.key", f"is needed for the secret {name!r}: {_no_key(self._settings)}"
                )
            )
        if row["key_id"] != _key_id(key):
            raise InvalidSettings(
                Problem(
                    "secrets.key",
                    f"is not the one that the secret {name!r} was stored under (that is "
                    f"{row['key_id']}, this is {_key_id(key)}): set the right one, or store the "
                    f"secret again with `kalla secret set {name}`",
                )
            )
        return _open(key, name, bytes(row["sealed"]))

    def _folder_said(self, name: str) -> str:
        folder = self._settings.secrets.folder
        return f"{folder} holds no file {name}" if folder else "secrets.folder is not set"

    def _key(self) -> bytes | None:
        given = self._settings.secrets.key.get_secret_value()
        if given:
            return _decoded(given, "secrets.key")
        path = key_file(self._settings)
        try:
            return _decoded(path.read_text("ascii"), str(path))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not base64"
            raise InvalidSettings(Problem(str(path), f"cannot be read: {reason}")) from None

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[DictRow]]:
        database = self._settings.database
        try:
            with psycopg.connect(
                database.url.get_secret_value(),
                row_factory=dict_row,
                application_name="kalla secrets",
                connect_timeout=max(1, int(database.connect_timeout)),
            ) as connection:
                yield connection
        except psycopg.errors.UndefinedTable:
            raise Unavailable("the database is not migrated: run `kalla migrate`") from None
        except psycopg.OperationalError as error:
            raise unanswered(error) from None


def valid_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            Problem("name", "of a secret must have 1 to 200 letters, digits, _ . or -")
        )
    return name


def variable_of(name: str) -> str:
    """The environment variable that holds the secret of this name."""
    return "KALLA_SECRET_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def key_file(settings: Settings) -> Path:
    """Where the key of one machine's store is, unless secrets.key says it."""
    return settings.data_dir / "secrets.key"


def new_key() -> str:
    return base64.b64encode(os.urandom(_KEY_BYTES)).decode()


def _no_key(settings: Settings) -> str:
    return (
        "there is no key for the encrypted store: set secrets.key (or KALLA_SECRETS_KEY) to 32 "
        f"random bytes in base64, or start `kalla up`, which makes {key_file(settings)}"
    )


def _decoded(text: str, origin: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidSettings(Problem(origin, f"must be {_KEY_BYTES} bytes in base64"))
    return key


def _key_id(key: bytes) -> str:
    return sha256(b"kalla secrets key id\0" + key).hexdigest()[:16]


def _seal(key: bytes, name: str, content: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, name.encode())


def _open(key: bytes, name: str, sealed: bytes) -> str:
    """The name was sealed in: a row put under another name does not open."""
    nonce, content = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        plain = AESGCM(key).decrypt(nonce, content, name.encode())
    except (InvalidTag, ValueError):
        raise InvalidSettings(
            Problem(
                f"secret://{name}",
                f"is damaged in the encrypted store: set it again with `kalla secret set {name}`",
            )
        ) from None
    return _text(plain, f"secret://{name}")


def _text(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        # Not the error itself: it would hold the content.
        raise InvalidSettings(Problem(what, "is not text in UTF-8")) from None

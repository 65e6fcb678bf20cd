"""A Postgres server that lets nobody in, whatever language it says so in."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput, KallaError, Unavailable
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.spark.connectors.postgres_link import Link

_SSL, _GSS = 80877103, 80877104  # asked for before a session begins


@contextmanager
def refusing(code: str, words: bytes) -> Iterator[str]:
    """The address of a server that asks for a password and then refuses with this code."""
    fields = (b"SFATAL", b"VFATAL", b"C" + code.encode(), b"M" + words, b"", b"")
    refusal = b"\0".join(fields)

    def receive(line: socket.socket) -> bytes:
        (size,) = struct.unpack("!i", line.recv(4, socket.MSG_WAITALL))
        return line.recv(size - 4, socket.MSG_WAITALL)

    def answer(line: socket.socket) -> None:
        with line, suppress(OSError, struct.error):
            while struct.unpack("!i", receive(line)[:4])[0] in (_SSL, _GSS):
                line.sendall(b"N")
            line.sendall(b"R" + struct.pack("!ii", 8, 3))  # in clear text
            line.recv(1)
            receive(line)
            line.sendall(b"E" + struct.pack("!i", len(refusal) + 4) + refusal)

    def serve() -> None:
        with suppress(OSError):
            while True:
                answer(server.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = Thread(target=serve)
        serving.start()
        try:
            yield f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/db"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


REFUSED = {
    "28P01": "Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen",
    "28000": "kein pg_hba.conf-Eintrag für Host »127.0.0.1«, Benutzer »u«",
    "3D000": "la base de données « db » n'existe pas",
    "42501": "keine Berechtigung für Datenbank »db«",
}
AWAY = {
    "53300": "tut mir leid, schon zu viele Verbindungen",
    "57P03": "le système de bases de données se lance",
}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize(
    ("code", "words", "meaning"),
    [(*each, InvalidInput) for each in REFUSED.items()]
    + [(*each, Unavailable) for each in AWAY.items()],
)
def test_a_refusal_is_known_by_its_code_and_not_by_its_words(
    code: str, words: str, meaning: type[KallaError], encoding: str
) -> None:
    with refusing(code, words.encode(encoding)) as uri:
        password = SecretStr("open-sesame")
        with pytest.raises(meaning, match=words.split()[0]) as asked:
            PostgresConnector(uri, "t", password).schema()
        with pytest.raises(meaning) as read, Link(uri, password).arrow():
            pass
    assert "sesame" not in f"{asked.value!r}{read.value!r}"


def test_a_missing_password_is_the_users_to_give() -> None:
    with refusing("28P01", b"") as uri, pytest.raises(InvalidInput, match="no password"):
        PostgresConnector(uri, "t").schema()

"""Commands that write where there is no room: one sentence, exit code 2, and nothing half-written.

/dev/full is a disk that is full, also behind a link that has the name of the file to be made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import duckdb
import pytest

from kalla.errors import Unavailable
from kalla.reconcile.sql import duckdb_errors
from kalla.storage import LOCAL

KALLA = [sys.executable, "-m", "kalla.cli.main"]


class _Evidence(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"record_key\r\n" * 10_000)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Evidence) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def export(folder: Path, api: str, stdout: str) -> subprocess.CompletedProcess[str]:
    with Path(stdout).open("w") as opened:
        return subprocess.run(
            [*KALLA, "runs", "export", "7", "matched", "--output", "-"],
            cwd=folder,
            env=os.environ | {"KALLA_API_URL": api, "KALLA_API_TOKEN": "unused"},
            stdout=opened,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


def test_an_export_to_a_stdout_that_is_full_says_so(api: str, tmp_path: Path) -> None:
    done = export(tmp_path, api, "/dev/full")
    assert (done.returncode, done.stderr) == (
        2,
        "the export cannot be written: -: No space left on device\n",
    )


def test_a_text_that_finds_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kalla.storage.storage.uuid4", lambda: _Same)
    (tmp_path / ".rows.csv.same").symlink_to("/dev/full")
    with pytest.raises(Unavailable, match=r"rows.csv cannot be used now: No space left on device"):
        LOCAL.write_text(str(tmp_path / "rows.csv"), "id\n")
    assert not list(tmp_path.iterdir())


def test_a_match_that_finds_no_room_may_find_some_later() -> None:
    with duckdb.connect() as connection, pytest.raises(duckdb.IOException) as caught:
        connection.execute("COPY (SELECT 1 FROM range(100000)) TO '/dev/full' (FORMAT csv)")
    told = duckdb_errors.of_matching(caught.value)
    assert isinstance(told, Unavailable)
    assert "the match failed: Could not" in str(told)


class _Same:
    hex = "same"

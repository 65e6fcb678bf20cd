"""Files on a real S3 by URL, and DuckDB reading them there."""

from __future__ import annotations

import gzip
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput, NotFound, Unavailable
from kalla.local.servers import s3
from kalla.storage import S3, Storage, join
from kalla.storage.duckdb import S3ForDuckDB
from tests.servers import S3Server, required

TREE = ("a.csv", "b.txt", ".hidden.csv", "_tmp/c.csv", "deep/d.csv", "deep/er/e.csv", "a b#?%.csv")


@pytest.fixture
def storage(s3_server: S3Server) -> Storage:
    return s3_server.storage


@pytest.fixture
def tree(storage: Storage, bucket: str) -> str:
    for name in TREE:
        storage.write_text(join(bucket, "tree", name), name)
    return join(bucket, "tree")


def test_files_folders_and_patterns_are_found_as_on_disk(storage: Storage, tree: str) -> None:
    def names(url: str) -> list[str]:
        return [each.url.removeprefix(tree + "/") for each in storage.files(url)]

    assert (
        names(tree)
        == names(tree + "/")
        == ["a b#?%.csv", "a.csv", "b.txt", "deep/d.csv", "deep/er/e.csv"]
    )
    assert names(join(tree, "a b#?%.csv")) == ["a b#?%.csv"]
    assert names(join(tree, "*.csv")) == ["a b#?%.csv", "a.csv"]
    assert names(join(tree, "**/*.csv")) == ["a b#?%.csv", "a.csv", "deep/d.csv", "deep/er/e.csv"]
    assert names(join(tree, "*/?.csv")) == ["deep/d.csv"]
    assert storage.size(join(tree, "a.csv")) == 5
    assert storage.info(join(tree, "a.csv")).modified is not None


def test_what_is_not_there_is_not_found(storage: Storage, tree: str) -> None:
    for url in (join(tree, "none.csv"), join(tree, "none-*.csv"), join(tree, "none/**/*.csv")):
        with pytest.raises(NotFound, match="none"):
            storage.files(url)
    for url in ("s3://no-such-bucket/a.csv", "s3://no-such-bucket/*.csv", "s3://no-such-bucket"):
        with pytest.raises(NotFound, match="there is no bucket no-such-bucket"):
            storage.files(url)
    with pytest.raises(NotFound, match="there is no bucket"):
        storage.write_text("s3://no-such-bucket/a.txt", "text")
    with pytest.raises(InvalidInput, match="name one bucket"):
        storage.files("s3://*/a.csv")


def test_wrong_keys_are_said_to_be_wrong(storage: Storage, tree: str) -> None:
    assert storage.s3
    for key, secret in (("kalla", "wrong"), ("nobody", "wrong")):
        wrong = Storage(
            replace(storage.s3, access_key=SecretStr(key), secret_key=SecretStr(secret))
        )
        for url in (tree, join(tree, "a.csv"), join(tree, "*.csv")):
            with pytest.raises(InvalidInput, match=r"storage\.s3_access_key"):
                wrong.files(url)
        with pytest.raises(InvalidInput, match=r"storage\.s3_access_key"):
            wrong.write_text(join(tree, "a.csv"), "text")


def test_a_server_that_is_away_is_unavailable() -> None:
    key = SecretStr("key")
    away = Storage(S3("http://127.0.0.1:9", access_key=key, secret_key=key))
    with pytest.raises(Unavailable, match="S3 does not answer"):
        away.files("s3://bucket/a.csv")


def test_text_and_folders_go_there_and_back(storage: Storage, bucket: str, tmp_path: Path) -> None:
    for name in ("x.txt", "deep/z"):
        (tmp_path / "mine" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "mine" / name).write_text(name)
    there = join(bucket, "runs", "1")
    assert not storage.holds(there)
    storage.put(tmp_path / "mine", there)
    storage.put(tmp_path / "mine" / "x.txt", join(there, "again.txt"))
    storage.write_text(join(there, "metadata.json"), "zwölf")
    assert storage.read_text(join(there, "metadata.json")) == "zwölf"
    found = {
        each.url.removeprefix(f"{there}/"): storage.read_text(each.url)
        for each in storage.files(there)
    }
    assert found == {
        "x.txt": "x.txt",
        "deep/z": "deep/z",
        "again.txt": "x.txt",
        "metadata.json": "zwölf",
    }
    assert storage.holds(there)
    storage.remove(there)
    storage.remove(there)
    assert not storage.holds(there)
    with pytest.raises(InvalidInput, match="whole disk or bucket"):
        storage.remove(bucket)


class Failing(BaseHTTPRequestHandler):
    """An S3 that knows nothing and takes nothing."""

    def _answer(self, status: int) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self._answer(404)

    def do_PUT(self) -> None:
        self._answer(500)

    def do_POST(self) -> None:
        self._answer(500)

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.mark.parametrize("size", [10, 20_000_000], ids=["in one piece", "in parts"])
def test_what_the_server_does_not_take_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        key = SecretStr("key")
        endpoint = f"http://127.0.0.1:{server.server_port}"
        failing = Storage(S3(endpoint, access_key=key, secret_key=key))
        with pytest.raises(Unavailable, match="s3://bucket/file"):
            failing.put(tmp_path / "file", "s3://bucket/file")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_servers_key_is_in_a_private_file_and_in_no_argument(tmp_path: Path) -> None:
    server = s3.S3(tmp_path, 1)
    server.prepare()
    secret = server.settings.s3_secret_key.get_secret_value()
    assert secret in (server.folder / "s3.json").read_text()
    assert (server.folder / "s3.json").stat().st_mode & 0o077 == 0
    with required():
        assert secret not in " ".join(server.command())


ROWS = 100_000


def test_duckdb_reads_all_formats_with_several_threads(
    storage: Storage, bucket: str, tmp_path: Path
) -> None:
    text = b"id,ref\n" + b"".join(b"%d,ref %d\n" % (n, n) for n in range(ROWS))
    lines = b"".join(b'{"id": "%d"}\n' % n for n in range(ROWS))
    table = pa.table({"id": pa.array(range(ROWS))})
    (tmp_path / "rows.csv").write_bytes(text)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text, 1))
    (tmp_path / "rows.jsonl").write_bytes(lines)
    pq.write_table(table, tmp_path / "rows[1].parquet", row_group_size=10_000)
    storage.put(tmp_path, bucket)
    with duckdb.connect(config={"threads": 4, "autoload_known_extensions": "false"}) as connection:
        storage.register(connection)
        columns = "auto_detect=false, header=true, columns={'id': 'BIGINT', 'ref': 'VARCHAR'}"
        for scan in (
            f"read_csv('{bucket}/rows.csv', {columns})",
            f"read_csv('{bucket}/rows.csv.gz', {columns})",
            f"read_csv('{bucket}/*.csv', {columns})",
            f"read_json('{bucket}/rows.jsonl', columns={{'id': 'BIGINT'}})",
            f"read_parquet('{bucket}/rows[[]1].parquet')",
            f"read_parquet('{bucket}/*.parquet')",
        ):
            found = connection.execute(f"SELECT count(*), sum(id), max(id) FROM {scan}").fetchall()
            assert found == [(ROWS, ROWS * (ROWS - 1) // 2, ROWS - 1)], scan


def test_of_a_parquet_file_only_the_needed_columns_are_fetched(
    storage: Storage, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {f"c{n}": pa.array([f"{n} {row} text" for row in range(20_000)]) for n in range(10)}
    pq.write_table(
        pa.table(wide), tmp_path / "wide.parquet", compression="none", use_dictionary=False
    )
    storage.put(tmp_path / "wide.parquet", join(bucket, "wide.parquet"))
    fetched: list[int] = []
    opened = S3ForDuckDB._open

    def counted(self: S3ForDuckDB, path: str, mode: str = "rb", **more: object) -> object:
        file = opened(self, path, mode, **more)
        read = file.read

        def counting(size: int = -1) -> bytes:
            fetched.append(size)
            return read(size)

        monkeypatch.setattr(file, "read", counting)
        return file

    monkeypatch.setattr(S3ForDuckDB, "_open", counted)
    with duckdb.connect() as connection:
        storage.register(connection)
        url = join(bucket, "wide.parquet")
        connection.execute(f"SELECT max(c3) FROM read_parquet('{url}')").fetchall()
    assert 0 < sum(fetched) < storage.size(url) / 4


def test_duckdb_does_not_write_there(storage: Storage, bucket: str) -> None:
    with duckdb.connect() as connection:
        storage.register(connection)
        with pytest.raises(duckdb.Error, match="only reads"):
            connection.execute(f"COPY (SELECT 1 AS id) TO '{bucket}/rows.parquet'")

"""`make api-contract`: schemathesis against the real API: what its description says is true.

Postgres and the app are started here; Spark, Kafka and ClickHouse are away, which is answered too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import SecretStr

from kalla import database, logs
from kalla.app.api import create_app
from kalla.app.job_types import job_types as all_job_types
from kalla.app.serving import address_of, bind, serving
from kalla.database import Database
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings, Spark, Storage
from kalla.spark.session import SparkSessions
from kalla.web import openapi
from kalla.web.tokens import tokens
from tests.web_kit import Bell

# Whoever revokes tokens by small numbers must not hit the one that asks.
_OWN_TOKEN_ID = 4_000_000_000
_CONFIG = Path(__file__).with_name("schemathesis.toml")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description=__doc__)
    parser.add_argument("--cases", type=int, default=10, help="made up for each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("rest", nargs="*", help="further options of schemathesis, after --")
    asked = parser.parse_args()
    logs.configure("error", "text")
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres(Path(folder) / "postgres", ports.choose_free())
        server.start()
        try:
            server.create_database()
            return asyncio.run(check(Path(folder), server.url(), asked))
        finally:
            server.stop()


async def check(folder: Path, url: str, asked: argparse.Namespace) -> int:
    settings = Settings(
        data_dir=folder,
        database=DatabaseSettings(url=SecretStr(url)),
        spark=Spark(remote="sc://localhost:1"),
        storage=Storage(evidence=str(folder / "evidence")),
    )
    await database.migrate(settings.database)
    pool = Database(settings.database)
    job_types = all_job_types(settings, SparkSessions(settings.spark))
    app = create_app(settings, job_types, pool, Bell())
    listener = bind("127.0.0.1", 0, "api.port")
    async with app.router.lifespan_context(app), serving(app, listener):
        async with pool.transaction() as connection:
            await connection.execute(
                "ALTER TABLE kalla.tokens ALTER COLUMN token_id"
                f" RESTART WITH {_OWN_TOKEN_ID}".encode()
            )
            token = await tokens.create(connection, "contract", "admin")
        described = folder / "openapi.json"
        described.write_text(json.dumps(openapi.describe(app)), encoding="utf-8")
        return await asyncio.to_thread(run, described, address_of(listener), token, asked)


def run(described: Path, address: str, token: str, asked: argparse.Namespace) -> int:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(_CONFIG)),
        *("run", str(described)),
        *("--url", f"http://{address}", "--header", f"Authorization: Bearer {token}"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", str(asked.cases)),
        *("--seed", str(asked.seed), "--generation-database", "none", "--continue-on-failure"),
        *("--request-timeout", "60", "--warnings", "off", *asked.rest),
    ]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.contract.hooks"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(command, cwd=described.parent, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

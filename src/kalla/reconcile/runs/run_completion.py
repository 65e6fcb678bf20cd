"""Completes ended runs: stores the result, submits the callback, removes temporary files.

A run ends in many ways (a job fails, a person cancels, the reaper finds it late), so a service
searches for ended runs and completes each once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, SecretStr

from kalla import logs
from kalla.database import Connection, Database
from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.evidence.writing import leftovers
from kalla.reconcile.runs import store
from kalla.reconcile.runs.store import Ended, Untidy
from kalla.settings import Settings
from kalla.storage import Storage, join
from kalla.work.handler import Context, Stateless
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.job_type import JobTypes
from kalla.work.service import Periodic, SetAside
from kalla.work.state import jobs, runs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.channel import Wake

INTERVAL = 1.0
CALLS = 10  # attempts; the pauses between them double
SIGNATURE = "Kalla-Signature"
DELIVERY = "Kalla-Delivery"

PRIORITY = 100  # small jobs, which should not wait behind a long queue of chunks

_CALL_SECONDS = 15.0

_log = logs.get(__name__)


class Conclusions(Periodic):
    """Searches for ended runs in every worker and in the API; completes each once."""

    def __init__(self, database: Database, job_types: JobTypes, wake: Wake) -> None:
        super().__init__("conclusions", INTERVAL)
        self._database = database
        self._job_types = job_types
        self._wake = wake
        self._aside = SetAside("conclusions")

    async def tick(self) -> float | None:
        woken = Woken()
        async with self._database.transaction() as connection:
            aside = [row for row in self._aside.current() if isinstance(row, int)]
            found = await store.ended(connection, without=aside)
            for row in found:
                concluded = partial(self._conclude_apart, connection, row)
                woken += await self._aside.attempt(row["run_id"], concluded) or Woken()
        async with self._database.transaction() as connection:
            for untidy in await store.untidy(connection):
                tidied = partial(self._tidy_apart, connection, untidy)
                submitted = await self._aside.attempt(("tidy", untidy.run_id), tidied)
                if submitted is None:
                    await store.tidy_later(connection, untidy.run_id)
                woken += submitted or Woken()
        for row in found:
            _log.info("run ended", run=row["run_id"], status=row["status"])
        if woken:
            await self._wake.nudge(woken)
        return 0.0 if found else None

    async def _conclude_apart(self, connection: Connection, row: Mapping[str, Any]) -> Woken:
        async with connection.transaction():
            return await self._conclude(connection, store.ended_run(row))

    async def _tidy_apart(self, connection: Connection, untidy: Untidy) -> Woken:
        async with connection.transaction():
            return (await jobs.insert(connection, self._job_types, [tidying(untidy)])).woken

    async def _conclude(self, connection: Connection, run: Ended) -> Woken:
        await store.conclude(connection, run)
        exceptions = run.report.exceptions if run.report else None
        if run.callback is None or not run.callback.wants(run.status, exceptions):
            return Woken()
        # Text that a job may not contain is left out, first the error's text; then a name.
        for shortened in (
            run,
            replace(run, error="see the run"),
            replace(run, error=None, name=""),
        ):
            try:
                return (await jobs.insert(connection, self._job_types, [call(shortened)])).woken
            except InvalidInput as refusal:
                _log.warning("the call cannot say all", run=run.run_id, reason=str(refusal))
        _log.error("the run is completed without its callback", run=run.run_id)
        return Woken()


def tidying(run: Untidy) -> NewJob:
    keep = None if run.evidence_url is None else run.evidence_url.rstrip("/").rpartition("/")[2]
    payload = {"run_id": run.run_id, "keep": keep, "fence": run.fence}
    return NewJob("tidy", payload, priority=PRIORITY, dedupe_key=runs.after_run(run.run_id))


def call(run: Ended) -> NewJob:
    """The one call about this ending. Its delivery is the same however often it is tried."""
    if run.callback is None:
        raise ValueError(f"run {run.run_id} has no callback")
    ending = "" if run.finished_at is None else f"-{run.finished_at.timestamp():.6f}"
    body = {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status,
        "error": run.error,
        "finished_at": run.finished_at and run.finished_at.isoformat(),
        "match_rate": run.report and run.report.match_rate,
        "exceptions": run.report and run.report.exceptions,
        "evidence": run.evidence_url,
    }
    payload = {
        "url": run.callback.url,
        "signed_with": f"secret://{run.callback.secret}",
        "delivery": f"run-{run.run_id}{ending}",
        "body": body,
    }
    return NewJob("callback", payload, priority=PRIORITY, max_attempts=CALLS)


class Call(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    signed_with: str
    delivery: str
    body: dict[str, Any]


class Callback(Stateless):
    """Calls a registered destination with a run's result, signed, until it confirms."""

    def __init__(self, secret: Callable[[str], SecretStr]) -> None:
        self._secret = secret

    def run(self, job: Job, context: Context) -> Outcome:
        asked = Call.model_validate(job.payload)
        context.check()
        body = json.dumps(asked.body, separators=(",", ":"), ensure_ascii=False).encode()
        key = self._secret(asked.signed_with.removeprefix("secret://"))
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: signature(key, int(time.time()), body),
            DELIVERY: asked.delivery,
        }
        try:
            # The answer's body is not read, because it may be of any size; redirects are not
            # followed, because only the destination is registered.
            with (
                httpx.Client(timeout=_CALL_SECONDS, trust_env=False) as client,
                client.stream("POST", asked.url, content=body, headers=headers) as answer,
            ):
                pass
        except httpx.HTTPError as error:
            raise Unavailable(f"{asked.url} does not answer: {error}") from None
        if not answer.is_success:
            raise Unavailable(f"{asked.url} answered {answer.status_code}")
        return Outcome({"status": answer.status_code})


def signature(key: SecretStr, at: int, body: bytes) -> str:
    """HMAC-SHA256 of time and body: an old call cannot be sent again as a new one."""
    signed = hmac.new(key.get_secret_value().encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={signed.hexdigest()}"


class Tidied(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: int
    keep: str | None  # the attempt whose evidence counts
    fence: int  # of the newest attempt that may be removed


class Tidy(Stateless):
    """Removes a run's staged rows, and evidence of superseded attempts and tasks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, job: Job, context: Context) -> Outcome:
        asked = Tidied.model_validate(job.payload)
        context.check()
        storage, name = Storage.of(self._settings.storage), f"run-{asked.run_id}"
        storage.remove(join(self._settings.staging_url, name))
        evidence = join(self._settings.evidence_url, name)
        for attempt in storage.folders(evidence):
            if attempt == asked.keep:
                leftovers.sweep(join(evidence, attempt), storage)
            elif _fence_of(attempt) <= asked.fence:
                storage.remove(join(evidence, attempt))
        return Outcome()


def _fence_of(attempt: str) -> int:
    """The fence in a folder name of `handlers.attempt_of`."""
    return int(attempt.split("-")[1])

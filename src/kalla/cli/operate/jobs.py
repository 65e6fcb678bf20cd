"""`kalla jobs`: submit, list, show, cancel and retry, through the API."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from kalla.cli.client import Client, Style, ago, console, print_json, print_table, say
from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.web.text_format import seconds

app = typer.Typer(no_args_is_help=True)

JobId = Annotated[int, typer.Argument(metavar="ID", min=1)]
ENDED = ("completed", "failed", "cancelled")

_PATIENCE_SECONDS = 60.0


@app.command()
def submit(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as probe.")],
    payload: Annotated[
        str | None, typer.Option(help="A JSON object, or @file that holds one.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Another queue than the type's own.")] = None,
    priority: Annotated[int, typer.Option(help="Higher is claimed first.")] = 0,
    delay: Annotated[float, typer.Option(help="Seconds before it may be claimed.")] = 0,
    dedupe_key: Annotated[str | None, typer.Option(help="Unique among waiting jobs.")] = None,
    running_key: Annotated[str | None, typer.Option(help="Unique among running jobs.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds without a heartbeat after which it is lost.")
    ] = None,
    max_runtime: Annotated[
        float | None, typer.Option(help="Longest run time in seconds; then it is stopped.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="Number of failures after which it has failed.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again under this key changes nothing.")
    ] = None,
    sleep: Annotated[float | None, typer.Option(help="probe: seconds to sleep.")] = None,
    count: Annotated[
        int | None, typer.Option(help="probe: number of rows to count on Spark.")
    ] = None,
    fail: Annotated[bool, typer.Option("--fail", help="probe: fail.")] = False,
    fail_times: Annotated[
        int | None, typer.Option(help="probe: number of failures before it succeeds.")
    ] = None,
    hang: Annotated[bool, typer.Option("--hang", help="probe: never end.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; exit code 1 if it did not complete.")
    ] = False,
    style: Style = "text",
) -> None:
    """Submit one job."""
    probe = {
        "sleep": sleep,
        "count": count,
        "fail": fail or None,
        "fail_times": fail_times,
        "hang": hang or None,
    }
    body = {
        "type": job_type,
        "payload": _document(payload) | _given(probe),
        "priority": priority,
        "delay_seconds": delay,
    } | _given(
        {
            "queue": queue,
            "dedupe_key": dedupe_key,
            "running_key": running_key,
            "timeout_seconds": timeout,
            "max_runtime_seconds": max_runtime,
            "max_attempts": max_attempts,
        }
    )
    with Client() as client:
        job = client.post("/api/jobs", body, idempotency_key)
        if style == "text":
            repeated = ", which waited already under the same dedupe key" if job["repeated"] else ""
            typer.echo(f"Job {job['job_id']} ({job['type']}) waits in {job['queue']}{repeated}.")
        if wait:
            job = _await_end(client, job)
    if style == "json":
        print_json(job)
    elif wait:
        _print_ending(job)
    if wait and job["status"] != "completed":
        raise typer.Exit(1)


@app.command("list")
def list_jobs(
    status: Annotated[
        str | None, typer.Option(help="pending, claimed, completed, failed or cancelled.")
    ] = None,
    queue: Annotated[str | None, typer.Option()] = None,
    job_type: Annotated[str | None, typer.Option("--type")] = None,
    run_id: Annotated[int | None, typer.Option("--run")] = None,
    before: Annotated[int | None, typer.Option(help="Jobs older than this one.")] = None,
    limit: Annotated[int, typer.Option()] = 20,
    upkeep: Annotated[
        bool, typer.Option("--upkeep", help="Also those that Kalla submits to clear up.")
    ] = False,
    style: Style = "text",
) -> None:
    """Show jobs, newest first."""
    which = {"status": status, "queue": queue, "type": job_type, "run_id": run_id}
    with Client() as client:
        page = client.get("/api/jobs", **which, before=before, limit=limit, upkeep=upkeep)
    if style == "json":
        print_json(page)
        return
    print_table(
        [
            "job",
            "type",
            "run",
            "recipe",
            "status",
            "failures",
            "queue",
            "worker",
            "created",
            "took",
            "last error",
        ],
        [
            [
                str(job["job_id"]),
                job["type"],
                str(job["run_id"] or ""),
                job["recipe"] or "",
                job["status"],
                f"{job['failures']}/{job['max_attempts']}",
                job["queue"],
                job["worker"] or "",
                ago(job["created_at"]),
                _took(job),
                (job["error"] or "").split("\n")[0][:80],
            ]
            for job in page["jobs"]
        ],
        "No jobs yet: try `kalla jobs submit probe --sleep 5`.",
        optional=["worker", "queue", "failures", "recipe", "took"],
    )
    if page["next_before"]:
        typer.echo(f"More: --before {page['next_before']}")


@app.command()
def show(job_id: JobId, style: Style = "text") -> None:
    """Show one job with its attempts, payload, result and error."""
    with Client() as client:
        job = client.get(f"/api/jobs/{job_id}")
    if style == "json":
        print_json(job)
    else:
        _print_job(job)


@app.command()
def cancel(job_id: JobId) -> None:
    """Cancel a waiting or running job; one of a run takes the whole run with it."""
    with Client() as client:
        job = client.post(f"/api/jobs/{job_id}/cancel")
    typer.echo(f"Job {job_id} is {job['status']}.")


@app.command()
def retry(job_id: JobId) -> None:
    """Let a failed or cancelled job wait again; one of a run revives the whole run."""
    with Client() as client:
        job = client.post(f"/api/jobs/{job_id}/retry")
    typer.echo(f"Job {job_id} is {job['status']} again.")


def _took(job: dict[str, Any]) -> str:
    if not (job["claimed_at"] and job["finished_at"]):
        return ""
    began, ended = (datetime.fromisoformat(job[name]) for name in ("claimed_at", "finished_at"))
    return seconds((ended - began).total_seconds())


def _document(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(Problem("payload", f"cannot be read: {error}")) from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidInput(Problem("payload", f"is not JSON: {error}")) from None
    if not isinstance(document, dict):
        raise InvalidInput(Problem("payload", "must be a JSON object, such as '{\"sleep\": 5}'"))
    return document


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _await_end(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    """Ask until the job has ended. An API that restarts meanwhile is waited for."""
    silent_since: float | None = None
    pause = 0.1
    while job["status"] not in ENDED:
        time.sleep(pause)
        pause = min(pause * 1.3, 1.0)
        try:
            job = client.get(f"/api/jobs/{job['job_id']}")
            silent_since = None
        except Unavailable:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > _PATIENCE_SECONDS:
                raise
    return job


def _print_ending(job: dict[str, Any]) -> None:
    typer.echo(f"Job {job['job_id']} {_ending(job)}.")
    if job["error"]:
        say(job["error"], err=True)
        if job.get("permanent"):
            say("The error is permanent: the job was not tried again.", err=True)
    elif job["result"]:
        print_json(job["result"])


def _ending(job: dict[str, Any]) -> str:
    return f"has {job['status']}" if job["status"] != "cancelled" else "was cancelled"


def _print_job(job: dict[str, Any]) -> None:
    facts = {
        "job": str(job["job_id"]),
        "type": job["type"],
        "status": job["status"],
        "queue": job["queue"],
        "run": job["run_id"] and str(job["run_id"]),
        "priority": job["priority"] and str(job["priority"]),
        "failures": f"{job['failures']} of at most {job['max_attempts']}",
        "fence": str(job["fence"]),
        "worker": job["worker"],
        "dedupe key": job["dedupe_key"],
        "running key": job["running_key"],
        "created": f"{job['created_at']} ({ago(job['created_at'])})",
        "due": job["status"] == "pending" and f"{job['run_after']} ({ago(job['run_after'])})",
        "claimed": job["claimed_at"],
        "finished": job["finished_at"],
        "payload": json.dumps(job["payload"], ensure_ascii=False),
        "progress": job["progress"] and json.dumps(job["progress"], ensure_ascii=False),
        "result": job["result"] and json.dumps(job["result"], ensure_ascii=False),
        "error": job["error"],
        "tried again": job.get("permanent") and "no, the error is permanent",
    }
    out = console()
    for name, value in facts.items():
        if value:
            out.print(Text(f"{name:<12}", "dim") + Text(str(value)), soft_wrap=True)
    for attempt in job["attempts"]:
        words = f"{attempt['ending']} on {attempt['worker']} at {attempt['ended_at']}"
        error = f": {attempt['error']}" if attempt["error"] else ""
        out.print(Text(f"{'attempt ' + str(attempt['fence']):<12}", "dim") + Text(words + error))
    if job["traceback"]:
        out.print(Text("\n" + job["traceback"], "dim"), soft_wrap=True)

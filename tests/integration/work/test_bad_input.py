"""Bad input: every problem names its field, says what to do, and nothing is half-done."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, Field

from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput
from kalla.settings import Limits, Settings
from kalla.work.handler import Context
from kalla.work.job import NewJob, Outcome
from kalla.work.job_type import JobType, JobTypes
from kalla.work.state import jobs
from tests.work_kit import JOB_TYPES, NOTHING, SETTINGS, beats, put, take


def problems(job: NewJob, job_types: JobTypes = JOB_TYPES, in_run: bool = False) -> dict[str, str]:
    """What is wrong with a job, by field."""
    with pytest.raises(InvalidInput) as raised:
        job_types.rows([job], in_run)
    return {problem.field: problem.message for problem in raised.value.problems}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("job", "field", "message"),
    [
        (NewJob("taks"), "type", "there is no job type 'taks'; did you mean 'task'?"),
        (NewJob("zzz"), "type", "known: chunk, flaky, match, plan, refresh, task"),
        (NewJob("task", queue="express"), "queue", "there is no queue 'express'"),
        (NewJob("task", queue="exec\n"), "queue", "there is no queue"),
        (NewJob("task", priority=40_000), "priority", "between -32768 and 32767, got 40000"),
        (NewJob("task", delay_seconds=-1), "delay_seconds", "0 to ten years, got -1"),
        (NewJob("task", delay_seconds=math.nan), "delay_seconds", "got nan"),
        (NewJob("task", delay_seconds=math.inf), "delay_seconds", "got inf"),
        (NewJob("task", timeout_seconds=-5), "timeout_seconds", "greater than 0"),
        (NewJob("task", timeout_seconds=0), "timeout_seconds", "greater than 0"),
        (NewJob("task", timeout_seconds=math.nan), "timeout_seconds", "greater than 0"),
        (NewJob("task", timeout_seconds=2), "timeout_seconds", "at least 6, two heartbeats"),
        (NewJob("task", max_runtime_seconds=-1), "max_runtime_seconds", "greater than 0"),
        (NewJob("task", max_runtime_seconds=math.inf), "max_runtime_seconds", "got inf"),
        (NewJob("task", max_attempts=0), "max_attempts", "between 1 and 1000, got 0"),
        (NewJob("task", max_attempts=-3), "max_attempts", "between 1 and 1000, got -3"),
        (NewJob("task", dedupe_key=""), "dedupe_key", "1 to 512 characters, got 0"),
        (NewJob("task", running_key="x" * 513), "running_key", "got 513"),
        (NewJob("task", dedupe_key="a\0b"), "dedupe_key", "NUL"),
        (NewJob("task", running_key="a\0b"), "running_key", "NUL"),
        (NewJob("task", running_key="half \ud83d"), "running_key", "half a surrogate pair"),
        (NewJob("task", payload={"x": math.nan}), "payload", "is not JSON"),
        (NewJob("task", payload={"x": -math.inf}), "payload", "is not JSON"),
        (NewJob("task", payload={"x": object()}), "payload", "is not JSON"),
        (NewJob("task", payload={"x": "a\0b"}), "payload", "NUL"),
        (NewJob("task", payload={"a\0b": 1}), "payload", "NUL"),
        (NewJob("task", payload={"x": "\\\0"}), "payload", "NUL"),
        (NewJob("task", payload={"x": "half \ud83d"}), "payload", "half a surrogate pair"),
        (NewJob("task", payload=nested(300)), "payload", "nested deeper than 100"),
        (NewJob("task", payload=nested(100_000)), "payload", "nested deeper than 100"),
        (NewJob("task", payload={"x": "y" * 262_144}), "payload", "the limit is 262144"),
    ],
)
def test_a_job_that_makes_no_sense_names_the_field(job: NewJob, field: str, message: str) -> None:
    found = problems(job)
    assert list(found) == [field]
    assert message in found[field]


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"password": "hunter2"}, "payload.password"),
        ({"source": {"api_key": "abc"}}, "payload.source.api_key"),
        ({"sources": [{"uri": "postgres://kalla:hunter2@db/orders"}]}, "payload.sources[0].uri"),
        ({"note": "kalla_0123456789abcdefghijABCDEFGHIJ0123456789abc"}, "payload.note"),
        ({"dsn": "host=db user=kalla password=hunter2"}, "payload.dsn"),
        ({"header": "Authorization: Bearer hunter2hunter2"}, "payload.header"),
        ({"tokens": ["hunter2"]}, "payload.tokens[0]"),
        ({"credentials": {"value": "hunter2"}}, "payload.credentials.value"),
    ],
)
def test_a_secret_in_the_clear_is_refused_and_not_repeated(
    payload: dict[str, Any], field: str
) -> None:
    """Trap 17: a job's payload is read by many and kept for days."""
    found = problems(NewJob("task", payload=payload))
    assert list(found) == [field]
    assert "secret://" in found[field]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("name", ["dedupe_key", "running_key"])
def test_a_key_that_holds_a_secret_is_refused(name: str) -> None:
    """Trap 17: keys are shown as they are."""
    key: dict[str, Any] = {name: "postgres://kalla:hunter2@db/orders"}
    found = problems(NewJob("task", **key))
    assert list(found) == [name]
    assert "hunter2" not in found[name]


@pytest.mark.parametrize(
    "payload",
    [
        {"password": "secret://orders-db"},
        {"text": "a backslash and u0000: \\u0000"},
        {"text": "späße 🎉", "number": 10**300, "deep": nested(90)},
    ],
)
async def test_what_only_looks_like_a_problem_is_kept_as_it_is(
    a: Connection, payload: dict[str, Any]
) -> None:
    (job_id,) = await put(a, NewJob("task", payload=payload))
    assert (await jobs.get(a, job_id)).payload == payload


def test_the_limit_of_a_payload_counts_the_bytes_that_are_kept() -> None:
    job_types = JobTypes(
        SETTINGS.model_copy(update={"limits": Limits(payload_bytes=1024)}),
        [JobType("task", "exec", NOTHING)],
    )
    fits = {"x": "ä" * ((1024 - len('{"x": ""}')) // 2)}
    assert len(job_types.rows([NewJob("task", payload=fits)])) == 1
    found = problems(NewJob("task", payload={"x": fits["x"] + "ä"}), job_types)
    assert "the limit is 1024" in found["payload"]


def test_a_payload_is_held_against_the_model_of_its_type() -> None:
    class Payload(BaseModel):
        rows: int = Field(ge=0)

    job_types = JobTypes(Settings(), [JobType("task", "exec", NOTHING, Payload)])
    assert "payload.rows" in problems(NewJob("task", payload={"rows": -1}), job_types)
    assert "payload.rows" in problems(NewJob("task"), job_types)
    assert len(job_types.rows([NewJob("task", payload={"rows": 1})])) == 1


def test_all_problems_are_named_at_once_with_the_place_of_their_job() -> None:
    with pytest.raises(InvalidInput) as raised:
        JOB_TYPES.rows(
            [NewJob("task"), NewJob("taks", priority=40_000), NewJob("task", max_attempts=0)]
        )
    assert [problem.field for problem in raised.value.problems] == [
        "jobs[1].type",
        "jobs[1].priority",
        "jobs[2].max_attempts",
    ]


def test_a_job_of_a_run_has_no_dedupe_key() -> None:
    """Its run would wait for a job that was never inserted."""
    assert list(problems(NewJob("task", dedupe_key="k"), in_run=True)) == ["dedupe_key"]


async def test_one_bad_job_keeps_its_whole_batch_out(a: Connection) -> None:
    with pytest.raises(InvalidInput):
        await jobs.insert(a, JOB_TYPES, [NewJob("task"), NewJob("taks")])
    with pytest.raises(Conflict, match="only a run has gates"):
        await jobs.insert(a, JOB_TYPES, [NewJob("task"), NewJob("task", gate="staged")])
    assert await jobs.listing(a) == []


# What a handler reports is input too.

UNSTORABLE: list[Any] = [math.nan, "a\0b", "half \ud83d", object(), nested(300)]


@pytest.mark.parametrize("value", UNSTORABLE, ids=["nan", "nul", "half", "object", "deep"])
async def test_a_report_that_cannot_be_kept_fails_in_the_handler_that_made_it(
    a: Connection, value: Any
) -> None:
    """Reports of many jobs share a statement: one bad one must not reach it."""
    with pytest.raises(ValueError, match="result"):
        Outcome({"x": value})
    context = Context()
    with pytest.raises(ValueError, match="progress"):
        context.progress(x=value)
    assert context.take_progress() is None


async def test_reports_that_can_be_kept_arrive(a: Connection) -> None:
    await put(a, NewJob("task"), NewJob("task"))
    first, second = await take(a, limit=2)
    context = Context()
    context.progress(rows=5, path="späße")
    assert not await jobs.heartbeat(a, [first, second], [context.take_progress(), None])
    assert (await jobs.get(a, first.job_id)).progress == {"rows": 5, "path": "späße"}
    assert await beats(a, second)

"""`probe`: a job for operators. It sleeps, counts with Spark, fails or hangs on request."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field

from kalla.errors import Permanent
from kalla.spark.session import SparkSessions
from kalla.work.handler import Context, Stateless
from kalla.work.job import Job, Outcome


class ProbePayload(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sleep: float = Field(0, ge=0, le=86_400, description="seconds to sleep, reporting progress")
    count: int | None = Field(None, ge=0, le=10**12, description="rows to count with Spark")
    fail: bool | str = Field(False, description="fail every time, with this message if it is text")
    fail_times: int = Field(0, ge=0, le=1000, description="how often to fail before it succeeds")
    give_up: bool = Field(False, description="fail in a way that is not tried again")
    hang: bool = Field(False, description="never end, not even when cancelled")


class Probe(Stateless):
    """What an operator runs to see that the system works, and how it behaves when work does not."""

    def __init__(self, spark: SparkSessions) -> None:
        self._spark = spark

    def run(self, job: Job, context: Context) -> Outcome:
        asked = ProbePayload.model_validate(job.payload)
        started = time.monotonic()
        self._sleep(asked.sleep, context)
        while asked.hang:
            time.sleep(1)  # deaf on purpose: the heartbeats go on, and max_runtime_seconds ends it
        if asked.give_up:
            raise Permanent("the probe was asked to give up")
        if asked.fail or job.failures < asked.fail_times:
            raise RuntimeError(asked.fail if isinstance(asked.fail, str) else "asked to fail")
        result: dict[str, float | int] = {}
        if asked.count is not None:
            context.progress(stage="counting with Spark", rows=asked.count)
            with self._spark.session(job, context) as spark:
                result["counted"] = spark.range(asked.count).selectExpr("id % 7 AS r").count()
        result["seconds"] = round(time.monotonic() - started, 3)
        return Outcome(result, rows=asked.count or 0)

    def _sleep(self, seconds: float, context: Context) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            context.progress(stage="sleeping", seconds_left=round(left, 1))
            context.wait(min(left, 1.0))

"""A job as a caller submits it: unknown fields are refused, as is what Postgres cannot store."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict, StrictInt

from kalla.web.storable import Document, Text
from kalla.work.job import NewJob

Number = Annotated[float, Strict()]  # otherwise false would be 0


class Submission(BaseModel):
    """What is left out comes from the job type's policy in the settings."""

    model_config = ConfigDict(extra="forbid")

    type: Text = Field(examples=["probe"])
    payload: Document = Field({}, examples=[{"sleep": 5}])
    queue: Text | None = None
    priority: StrictInt = Field(0, description="higher is claimed first")
    delay_seconds: Number = Field(0, description="seconds before the job may be claimed")
    dedupe_key: Text | None = Field(None, description="unique among waiting jobs")
    running_key: Text | None = Field(None, description="unique among running jobs")
    timeout_seconds: Number | None = None
    max_runtime_seconds: Number | None = None
    max_attempts: StrictInt | None = None

    def job(self) -> NewJob:
        return NewJob(**self.model_dump())

"""A job as a caller submits it: unknown fields are refused, as is what Postgres cannot store."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from kalla.web.storable import Document, Text
from kalla.work.job import NewJob


class Submission(BaseModel):
    """What is left out comes from the job type's policy in the settings."""

    model_config = ConfigDict(extra="forbid")

    type: Text = Field(examples=["probe"])
    payload: Document = Field({}, examples=[{"sleep": 5}])
    queue: Text | None = None
    priority: int = Field(0, description="higher is claimed first")
    delay_seconds: float = Field(0, description="not claimed before so many seconds have passed")
    dedupe_key: Text | None = Field(None, description="unique among waiting jobs")
    running_key: Text | None = Field(None, description="unique among running jobs")
    timeout_seconds: float | None = None
    max_runtime_seconds: float | None = None
    max_attempts: int | None = None

    def job(self) -> NewJob:
        return NewJob(**self.model_dump())

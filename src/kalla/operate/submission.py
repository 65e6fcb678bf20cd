"""A job as a caller submits it: unknown fields are refused, as is what Postgres cannot store."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kalla.work.job import NewJob

_DEEPEST = 64


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which Postgres cannot store")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is no character") from None
    return text


def _storable_document(document: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [document]
    for _ in range(_DEEPEST):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            _storable(json.dumps(document, ensure_ascii=False))
            return document
    raise ValueError(f"is nested deeper than {_DEEPEST} levels")


Text = Annotated[str, AfterValidator(_storable)]
Document = Annotated[dict[str, Any], AfterValidator(_storable_document)]


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

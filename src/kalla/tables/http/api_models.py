"""The request and response models of `/api/tables`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class Statements(BaseModel):
    """CREATE DYNAMIC TABLE and CREATE SOURCE statements."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(max_length=1_000_000)
    dry_run: bool = Field(False, description="only return the plan")


class ShownStep(BaseModel):
    kind: str
    name: str
    action: str
    reason: str
    diff: list[str] = Field(description="removed lines with -, added lines with +")
    warning: str = Field("", description="UNATTAINABLE: the lag that no schedule keeps")


class ShownTable(BaseModel):
    name: str
    state: str
    target_lag_seconds: float | None = Field(description="null: DOWNSTREAM")
    effective_lag_seconds: float | None = Field(description="null: refreshed on demand only")
    lag_seconds: float | None = Field(description="age of the rows; null: never refreshed")
    late: bool
    why: str = Field(description="why it is late or not refreshed; empty: it is in time")
    attainable: bool
    period_seconds: float | None = Field(description="between ticks; null: on demand only")
    rows: int | None
    version: int
    data_version: int | None
    data_time: datetime | None
    reads: list[str]
    columns: list[str]
    location: str
    query: str
    comment: str
    strategy: str


class ShownRefresh(BaseModel):
    refresh_id: int
    tick_id: int
    job_id: int
    status: str
    strategy: str
    reason: str
    predicted_seconds: float | None
    seconds: float | None
    rows_deleted: int | None
    rows_inserted: int | None
    row_count: int | None
    changed_rows: int | None = Field(description="of all inputs, estimated")
    affected_keys: int | None
    lag_seconds: float | None
    error: str | None
    finished_at: datetime


class RefreshRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    full: bool = Field(False, description="recompute every row")
    upstream: bool = Field(False, description="with `full`: also of the tables that it reads")


class NewName(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")


class StrategyNote(BaseModel):
    strategy: str
    possible: bool
    reason: str


class Explanation(BaseModel):
    name: str
    strategy: str = Field(description="the setting REFRESH_STRATEGY")
    strategies: list[StrategyNote]
    keys: list[str] = Field(description="columns by which AFFECTED_KEYS recomputes rows")
    period_seconds: float | None = Field(description="between ticks; null: on demand only")
    why: str


class ShownVersion(BaseModel):
    version: int
    applied_at: datetime
    applied_by: str
    diff: list[str] = Field(
        description="difference to the version before; empty for the first one, and for all but the"
        " newest 20"
    )


class Select(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(max_length=100_000)


class Submitted(BaseModel):
    job_id: int

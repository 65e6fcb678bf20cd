"""A pipeline's tables as ClickHouse has them now."""

from __future__ import annotations

from pydantic import BaseModel, Field

from kalla.sinks.servers.clickhouse_client import ClickHouse, describe
from kalla.sinks.servers.server_connections import Resolve, target
from kalla.sinks.store import PipelineRecord

_SECONDS = 5.0


class Table(BaseModel):
    table: str
    engine: str | None = Field(description="none: there is no such table, or it may not be seen")
    window: int = Field(description="inserts whose tokens it remembers")
    readable: bool = Field(description="whether it can be asked for the offsets it holds")


def tables(record: PipelineRecord, resolve: Resolve) -> list[Table]:
    """Blocking. The table of rows, and that of dead letters."""
    config = record.clickhouse
    server = ClickHouse(target(config, resolve), _SECONDS)
    try:
        found = [(name, describe(server, name)) for name in (config.table, config.dead_letters)]
    finally:
        server.close()
    return [
        Table(
            table=name,
            engine=state.engine if state else None,
            window=state.window if state else 0,
            readable=state is not None and state.readable,
        )
        for name, state in found
    ]

"""A site of sinks for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sinks_kit import Servers, Site, open_site


@pytest.fixture
async def site(sink_servers: Servers, database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(sink_servers, database_url, tmp_path) as site:
        yield site

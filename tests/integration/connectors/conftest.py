"""Databases for the tests of connectors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.connectors.postgres_shelf import PostgresShelf
from tests.servers import PostgresServer


@pytest.fixture
def shelf(empty_database_url: str) -> PostgresShelf:
    """A database of this test's own."""
    return PostgresShelf(empty_database_url)


@pytest.fixture(scope="module")
def shared(postgres_server: PostgresServer) -> Iterator[PostgresShelf]:
    """One database for tests that name no table themselves."""
    name = postgres_server.create()
    yield PostgresShelf(postgres_server.url(name))
    postgres_server.drop(name)

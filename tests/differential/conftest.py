"""A Prometheus for all of these tests, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.both_engines import Both, both_engines


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with both_engines(tmp_path_factory.mktemp("prometheus"), seed=1) as started:
        yield started

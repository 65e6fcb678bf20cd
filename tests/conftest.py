"""What every test can ask for, and in which order they run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from kalla.web.assets.build import bundle

pytest_plugins = ["tests.servers", "tests.cluster", "tests.sinks_kit"]

_ATTACKS = set((Path(__file__).parent / "attack_suite.txt").read_text("utf-8").split())
_LONG = ("chaos", "spark", "browser")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Pages need their bundled libraries; building them anew takes seconds, and happens rarely."""
    if not hasattr(session.config, "workerinput"):
        bundle()


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A test that configures logging does not silence the tests after it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is on the list belongs to `make attack`: whole files, or tests of a file."""
    name = item.nodeid.partition("[")[0]
    if name in _ATTACKS or name.partition("::")[0] in _ATTACKS:
        item.add_marker("attack")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, so that two processes end together; else as shuffled."""

    def takes_long(item: pytest.Item) -> bool:
        return "e2e" in item.path.parts or any(map(item.get_closest_marker, _LONG))

    long_files = {item.path for item in items if takes_long(item)}
    items.sort(key=lambda item: item.path not in long_files)

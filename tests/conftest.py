"""What every test can ask for, and in which order they run."""

import pytest

pytest_plugins = ["tests.servers", "tests.cluster", "tests.sinks_kit"]

_LONG = ("chaos", "spark", "browser")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, so that two processes end together; else as shuffled."""

    def takes_long(item: pytest.Item) -> bool:
        return "e2e" in item.path.parts or any(map(item.get_closest_marker, _LONG))

    long_files = {item.path for item in items if takes_long(item)}
    items.sort(key=lambda item: item.path not in long_files)

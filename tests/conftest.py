"""Fixtures for all tests, and their tiers.

The expensive fixtures are created once a run, and only if a test uses them. Tests run in two tiers, by the marker
``slow``: docs/architecture.md describes them.
"""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.demo_fixture import trained_demo
from tests.support.server_fixtures import keys, reference, server

__all__ = ["keys", "reference", "server", "trained_demo"]

#: Chapters that are slow as a whole.
SLOW = {"clients", "debian", "faults", "fuzz"}
#: Chapters whose tests start servers.
SERVERS = {"clients", "debian", "e2e", "engine"}

# No test may fail because a machine is slow. Other options of the active profile stay, as on CI.
settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow chapters. Keep each file on one worker, and all tests with an engine on one, as two share the cores."""
    for item in items:
        chapter = item.path.relative_to(Path(__file__).parent).parts[0]
        if chapter in SLOW:
            item.add_marker(pytest.mark.slow)
        has_engine = chapter in SERVERS or "server" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("engine" if has_engine else item.nodeid.partition("::")[0]))

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

# No test may fail because a machine is slow. Other options of the active profile stay, as on CI.
settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow chapters. Keep each file on one worker, and all tests of the shared engine on one."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in SLOW:
            item.add_marker(pytest.mark.slow)
        shares_engine = "server" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("engine" if shares_engine else item.nodeid.partition("::")[0]))

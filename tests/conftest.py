"""Fixtures for all tests.

The expensive ones are created once a run, and only if a test uses them.
"""

from hypothesis import settings

from tests.support.demo_fixture import trained_demo
from tests.support.server_fixtures import keys, reference, server

__all__ = ["keys", "reference", "server", "trained_demo"]

# No test may fail because a machine is slow. Other options of the active profile stay, as on CI.
settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")

"""Fixtures for all tests. The expensive ones are made once a run, and only if a test asks for them."""

from hypothesis import settings

from tests.demo_fixture import trained_demo
from tests.e2e.fixtures import keys, reference, server

__all__ = ["keys", "reference", "server", "trained_demo"]

# No test fails because a machine is slow. What else the profile in force says, as on CI, stays.
settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")

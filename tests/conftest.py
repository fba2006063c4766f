"""Fixtures for all tests. The expensive ones are made once a run, and only if a test asks for them."""

from tests.demo_fixture import trained_demo
from tests.e2e.fixtures import keys, reference, server

__all__ = ["keys", "reference", "server", "trained_demo"]

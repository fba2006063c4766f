"""Fixtures for all tests."""

from tests.demo_fixture import trained_demo

__all__ = ["trained_demo"]

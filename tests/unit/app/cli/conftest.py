"""Fixtures of the tests of the server's commands."""

from tests.support.cli_fixtures import alone, clean_environment

__all__ = ["alone", "clean_environment"]

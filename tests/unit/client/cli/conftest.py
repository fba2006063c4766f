"""Fixtures of the command line's tests: a live server and the command as a script calls it."""

from tests.support.cli_fixtures import (
    adapter_folder,
    alone,
    clean_environment,
    new_slug,
    server_home,
    site,
    tenora,
)

__all__ = ["adapter_folder", "alone", "clean_environment", "new_slug", "server_home", "site", "tenora"]

"""Fixtures for all tests, and their tiers.

The expensive fixtures are created once a run, and only if a test uses them. Tests run in two tiers, by the marker
``slow``: docs/architecture.md describes them.
"""

import gc
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.built_once import built_once
from tests.support.demo_fixture import trained_demo
from tests.support.server_fixtures import keys, reference, server

__all__ = ["built_once", "keys", "reference", "server", "trained_demo"]

#: Chapters that are slow as a whole.
SLOW = {"clients", "console", "debian", "deploy", "faults", "fuzz"}
#: Chapters that share the server of the fixture ``server``.
SERVERS = {"debian", "e2e", "engine", "isolation"}
#: Chapters of which each has its own server, or its own browser.
SITES = {"clients", "console", "faults"}
#: Files that start clusters of Ray.
CLUSTERS = ("tests/ray/", "tests/e2e/test_fleet")

# A shell starts background jobs with SIGINT ignored, and commands that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may fail because a machine is slow. There are half as many examples as usual, to save minutes in each run; a
# test that needs more asks for them. Other options of the active profile stay, as on CI.
settings.register_profile("tests", settings(deadline=None, max_examples=50))
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "engine of the fixture `server`: in its process, or two replicas of Ray"
    parser.addoption("--engine", choices=("local", "ray"), default="local", help=help_text)
    help_text = "folder for the pictures of docs/console.md; default: .pytest_cache/console-pictures"
    parser.addoption("--console-pictures", type=Path, metavar="FOLDER", help=help_text)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the chapters that are slow as a whole."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Spare the garbage collector ten thousand tests and what they imported. It would walk them again and again."""
    gc.collect()
    gc.freeze()


class ByService(LoadScopeScheduling):
    """Give workers whole files, and one worker all files that use the same service.

    The server of the session and its engine start once. Clusters of Ray on one machine would take each other's ports.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(CLUSTERS):
            return "clusters"
        chapter = file.split("/")[1]
        if chapter in SERVERS:
            return "engine"
        return chapter if chapter in SITES else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByService(config, log)

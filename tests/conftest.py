"""Fixtures for all tests, and their tiers.

The expensive fixtures are created once a run, and only if a test uses them. Tests run in two tiers, by the marker
``slow``: docs/architecture.md describes them.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.demo_fixture import trained_demo
from tests.support.server_fixtures import keys, reference, server

__all__ = ["keys", "reference", "server", "trained_demo"]

#: Chapters that are slow as a whole.
SLOW = {"clients", "console", "debian", "deploy", "faults", "fuzz"}
#: Chapters whose tests start servers.
SERVERS = {"clients", "debian", "e2e", "engine", "isolation"}
#: First characters of the files whose servers have engine replicas.
FLEETS = "tests/e2e/test_fleet"
#: File of the console's tests with an engine. The others share one site and one browser.
CONSOLE_WITH_ENGINE = "tests/console/test_journeys.py"

# A shell starts background jobs with SIGINT ignored, and commands that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may fail because a machine is slow. Other options of the active profile stay, as on CI.
settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "engine of the fixture `server`: in its process, or two replicas of Ray"
    parser.addoption("--engine", choices=("local", "ray"), default="local", help=help_text)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the chapters that are slow as a whole."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in SLOW:
            item.add_marker(pytest.mark.slow)


class OneEngine(LoadScopeScheduling):
    """Give workers whole files, and one worker all chapters with an engine: two engines would share the cores.

    Another worker has the files with engine replicas. They mostly wait for Ray, and two of its clusters would share a
    port.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(FLEETS):
            return "fleet"
        chapter = file.split("/")[1]
        if chapter in SERVERS or file == CONSOLE_WITH_ENGINE:
            return "engine"
        return chapter if chapter == "console" else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneEngine(config, log)

"""Parity and the published SDK with all optional patches of vLLM off: answers depend on none of them."""

from collections.abc import Iterator

import pytest

from app.demo.train import Demo
from app.engine.vllm.patches.ledger import OPTIONAL
from tests.e2e import test_openai_sdk
from tests.e2e.test_openai_sdk import pricing, supply_chain
from tests.engine import test_parity
from tests.support.server import Server, running
from tests.support.server_fixtures import SLOTS, published

__all__ = ["pricing", "supply_chain"]

pytestmark = pytest.mark.slow

#: Without `in_core_executor`, core and worker poll without a pause. On two cores that keeps the server from fetching
#: tokens one by one (docs/decisions/0018-cpu-worker-in-the-core-process.md). The answers are the same.
NEEDS_PATCHES = {"test_tokens_are_sent_as_they_are_made"}

# The same tests, against this module's server.
for module in (test_openai_sdk, test_parity):
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    globals().update({name: test for name, test in tests.items() if name not in NEEDS_PATCHES})


@pytest.fixture(scope="module")
def server(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("patches-off")
    with running(home, trained_demo.base, **SLOTS, TENORA_ENGINE__PATCHES="none") as server:
        yield server


@pytest.fixture(scope="module")
def keys(server: Server, trained_demo: Demo) -> dict[str, str]:
    return published(server, trained_demo)


def test_every_process_has_them_off(server: Server) -> None:
    log = (server.home / "server.log").read_text()
    names = ", ".join(sorted(OPTIONAL))
    for process in ("off", "off in the engine core", "off in a worker"):
        assert f"Patches of vLLM that are {process}: {names}" in log
    commands = [" ".join(process.cmdline()) for process in server.engine_processes()]
    assert any("VLLM::Worker" in command for command in commands), "in_core_executor is off"

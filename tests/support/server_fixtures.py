"""One server with the real engine for all end-to-end tests: two slots, little host memory, the demo's adapters.

With ``--engine ray`` the server has two engine replicas of Ray instead of an engine.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from app.demo.train import Demo
from tests.support.engine_replicas import running_fleet
from tests.support.reference import PeftReference
from tests.support.server import Server, running

#: Fewer slots than adapters, so that every test runs during swaps. float32, so that tokens can be compared one by one
#: with PEFT's.
SLOTS: dict[str, Any] = {
    "TENORA_ENGINE__MAX_LORAS": "2",
    "TENORA_ENGINE__HOST_BYTES": str(2**20),
    "TENORA_ENGINE__MAX_LORA_RANK": "16",
    "TENORA_ENGINE__DTYPE": "float32",
    # Even at its most verbose log level the engine must not log prompts.
    "VLLM_LOGGING_LEVEL": "DEBUG",
}


@pytest.fixture(scope="session")
def server(
    trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Server]:
    run = running_fleet if pytestconfig.getoption("--engine") == "ray" else running
    with run(tmp_path_factory.mktemp("e2e"), trained_demo.base, **SLOTS) as server:
        yield server


@pytest.fixture(scope="session")
def keys(server: Server, trained_demo: Demo) -> dict[str, str]:
    return published(server, trained_demo)


def published(server: Server, trained_demo: Demo) -> dict[str, str]:
    """Publish each business unit's adapter under the unit's name, and return one key per unit."""
    keys = {unit: server.tenant(unit) for unit in trained_demo.adapters}
    for unit, directory in trained_demo.adapters.items():
        assert server.publish(unit, unit, directory).status_code == 201
    return keys


@pytest.fixture(scope="session")
def reference(trained_demo: Demo) -> PeftReference:
    return PeftReference(trained_demo.base, trained_demo.adapters)

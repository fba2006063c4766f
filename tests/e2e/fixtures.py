"""One server with the real engine for all end-to-end tests: two slots, host memory for few, the demo's adapters."""

from collections.abc import Iterator

import pytest

from app.demo.train import Demo
from tests.e2e.server import Server, running
from tests.reference import PeftReference

#: Fewer slots than adapters, so that every test here runs among swaps.
#: float32, so that tokens can be compared one by one with PEFT's.
SLOTS = {
    "TENORA_ENGINE__MAX_LORAS": "2",
    "TENORA_ENGINE__HOST_BYTES": str(2**20),
    "TENORA_ENGINE__MAX_LORA_RANK": "16",
    "TENORA_ENGINE__DTYPE": "float32",
    # At its most talkative the engine must not tell what it was asked.
    "VLLM_LOGGING_LEVEL": "DEBUG",
}


@pytest.fixture(scope="session")
def server(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("e2e"), trained_demo.base, **SLOTS) as server:
        yield server


@pytest.fixture(scope="session")
def keys(server: Server, trained_demo: Demo) -> dict[str, str]:
    """A key for each business unit, whose adapter is published under the unit's own name."""
    keys = {unit: server.tenant(unit) for unit in trained_demo.adapters}
    for unit, directory in trained_demo.adapters.items():
        assert server.publish(unit, unit, directory).status_code == 201
    return keys


@pytest.fixture(scope="session")
def reference(trained_demo: Demo) -> PeftReference:
    return PeftReference(trained_demo.base, trained_demo.adapters)

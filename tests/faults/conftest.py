"""One server for all faults, recreated only after tests that kill it."""

import os
import random
import secrets
from collections.abc import Iterator

import pytest

from app.demo.train import Demo
from tests.support.faults import site as sites
from tests.support.faults.site import Site


@pytest.fixture(scope="session")
def seed() -> int:
    """Seed for the times of the faults.

    It differs in each run, unless ``FAULTS_SEED`` sets it.
    """
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(2**31))
    print(f"FAULTS_SEED={seed}")  # noqa: T201 - pytest shows it when a test fails
    return seed


@pytest.fixture
def chance(seed: int, request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{seed} {request.node.name}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run all faults ``FAULTS_ROUNDS`` times in a row on one site, at different times in each round."""
    if (rounds := int(os.environ.get("FAULTS_ROUNDS", "1"))) > 1 and "chance" in metafunc.fixturenames:
        metafunc.fixturenames.append("round")
        metafunc.parametrize("round", range(rounds), scope="session")


# The package's scope ends it before other chapters on the same worker: its proxies would connect during the fuzz tests.
@pytest.fixture(scope="package")
def site(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with sites.running_site(tmp_path_factory.mktemp("faults"), trained_demo) as site:
        yield site

"""One server for all faults, made anew only by those that kill it."""

import os
import random
import secrets
from collections.abc import Iterator

import pytest

from app.demo.train import Demo
from tests.faults import site as sites
from tests.faults.site import Site


@pytest.fixture(scope="session")
def seed() -> int:
    """Of the moments at which faults come: another one in each run, unless ``FAULTS_SEED`` names it."""
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(2**31))
    print(f"FAULTS_SEED={seed}")  # noqa: T201 - pytest shows it when a test fails
    return seed


@pytest.fixture
def chance(seed: int, request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{seed} {request.node.name}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All faults ``FAULTS_ROUNDS`` times in a row on one site, at other moments in each round."""
    if (rounds := int(os.environ.get("FAULTS_ROUNDS", "1"))) > 1 and "chance" in metafunc.fixturenames:
        metafunc.fixturenames.append("round")
        metafunc.parametrize("round", range(rounds), scope="session")


@pytest.fixture(scope="session")
def site(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with sites.running_site(tmp_path_factory.mktemp("faults"), trained_demo) as site:
        yield site

"""One demo server with the real engine for all journeys, and the pictures that they take.

Only the first day asks models of the tenant ``pricing``: it counts its requests. The other tests use ``supply-chain``.
"""

import shutil
from collections.abc import Iterator

import pytest

from app.demo.train import Demo
from tests.support.console_pictures import PICTURES, Pictures
from tests.support.demo_server import DemoRun, running_demo


@pytest.fixture(scope="package")
def demo(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """Run the demo server on a copy of the trained models."""
    home = tmp_path_factory.mktemp("journey") / "home"
    shutil.copytree(trained_demo.base.parents[1], home)
    with running_demo(home) as run:
        yield run


@pytest.fixture(scope="package")
def pictures(pytestconfig: pytest.Config) -> Iterator[Pictures]:
    """Keep pictures in the folder of ``--console-pictures``, which must get all of them."""
    cache = pytestconfig.rootpath / ".pytest_cache"
    folder = pytestconfig.getoption("--console-pictures")
    pictures = Pictures(cache / "console-journey", folder or cache / "console-pictures")
    yield pictures
    assert folder is None or pictures.taken == set(PICTURES)

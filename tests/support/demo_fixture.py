"""The demo's models, trained once for all tests of a run."""

import pytest

from app.demo.train import Demo, ensure_demo


@pytest.fixture(scope="session")
def trained_demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return ensure_demo(tmp_path_factory.mktemp("demo-home"), progress=None)

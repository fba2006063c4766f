"""The demo's models, trained once for all runs and all workers of pytest.

`ensure_demo` trains them again if their recipe or the training code changes.
"""

import pytest

from app.demo.train import Demo, ensure_demo


@pytest.fixture(scope="session")
def trained_demo(pytestconfig: pytest.Config) -> Demo:
    return ensure_demo(pytestconfig.rootpath / ".pytest_cache" / "demo-home", progress=None)

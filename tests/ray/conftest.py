"""Fixtures of the tests with real clusters of Ray."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.support.light_processes import clean_environment


@pytest.fixture(scope="module", autouse=True)
def ray_environment() -> Iterator[None]:
    """Give each file an environment without settings of Ray. To connect to a cluster sets some, such as its token."""
    with patch.dict(os.environ, clean_environment(), clear=True):
        yield

"""Fixtures for attacks without an engine: a separate server for each module, and an adapter's files."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.serving import PeftFiles, peft_files, save_base
from tests.support.site import Site, running_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    with running_site(tmp_path_factory.mktemp("home"), base) as site:
        yield site


@pytest.fixture(scope="module")
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.client(site.admin_key) as client:
        yield client


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PeftFiles:
    return peft_files(tmp_path_factory.mktemp("peft"), seed=1)

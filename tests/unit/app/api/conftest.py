"""One live server with a fake engine for all HTTP tests. Each test creates its own tenant."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.serving import PeftFiles, peft_files, save_base
from tests.support.site import Site, Unit, make_unit, running_site


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base") / "tiny-llama")


@pytest.fixture(scope="session")
def site(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("home"), base) as site:
        yield site


@pytest.fixture
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.client(site.admin_key) as client:
        yield client


@pytest.fixture
def unit(site: Site, admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture
def files(tmp_path: Path) -> PeftFiles:
    """Adapter files with random weights, so that no other test has the same bytes."""
    return peft_files(tmp_path / "peft", seed=uuid.uuid4().int % 2**31)


@pytest.fixture
def other_files(tmp_path: Path) -> PeftFiles:
    """A second adapter with other weights."""
    return peft_files(tmp_path / "other-peft", seed=uuid.uuid4().int % 2**31)

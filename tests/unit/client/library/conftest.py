"""One live server with a fake engine for all tests of the library. Each test has a separate tenant."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tenora_client import Client
from tests.support.peft_folders import new_adapter
from tests.support.serving import save_base
from tests.support.site import Site, Unit, make_unit, running_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    with running_site(tmp_path_factory.mktemp("home"), base) as site:
        yield site


@pytest.fixture
def unit(site: Site) -> Unit:
    with site.client(site.admin_key) as admin:
        return make_unit(admin)


@pytest.fixture
def tenora(site: Site, unit: Unit) -> Iterator[Client]:
    """The library with a tenant's key."""
    with Client(site.url, unit.key) as tenora:
        yield tenora


@pytest.fixture
def platform(site: Site) -> Iterator[Client]:
    """The library with a platform key."""
    with Client(site.url, site.admin_key) as platform:
        yield platform


@pytest.fixture
def admin(site: Site) -> Iterator[httpx.Client]:
    with site.client(site.admin_key) as admin:
        yield admin


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of an adapter with random weights, as PEFT saves it."""
    return new_adapter(tmp_path / "adapter")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TENORA_URL", "TENORA_KEY", "TENORA_PROFILE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

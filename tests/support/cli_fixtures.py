"""Fixtures: a live server with a fake engine, and the CLI as a script calls it."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.main import create_app
from app.settings import Settings
from tests.support.cli import Tenora
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, NoEngine, peft_files, save_base, set_up


@pytest.fixture(scope="session")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HOME of the live server."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def site(server_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL and platform key of a live server."""
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    settings = Settings(home=server_home, base_model=str(base), engine={"max_lora_rank": MAX_RANK, "max_loras": 4})
    admin_key = asyncio.run(set_up(settings))
    with live_server(create_app(settings, engine=NoEngine())) as url:
        yield url, admin_key


@pytest.fixture
def tenora(site: tuple[str, str], tmp_path: Path, clean_environment: None) -> Tenora:
    """The CLI with a platform key and a separate HOME that has no demo."""
    url, key = site
    return Tenora({"TENORA_URL": url, "TENORA_KEY": key, "TENORA_HOME": str(tmp_path / "home"), "COLUMNS": "200"})


@pytest.fixture
def alone(tmp_path: Path, clean_environment: None) -> Tenora:
    """The CLI with a new HOME, without server URL and key."""
    return Tenora({"TENORA_HOME": str(tmp_path / "home"), "COLUMNS": "200"})


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TENORA_URL", "TENORA_KEY", "TENORA_HOME", "TENORA_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an adapter that PEFT saved and that fits the server's base."""
    folder = tmp_path_factory.mktemp("adapter")
    peft_files(folder, seed=7)
    return folder


@pytest.fixture(scope="session")
def new_slug() -> Callable[[], str]:
    """Factory of tenant slugs that no other test uses."""
    numbers = iter(range(10_000))
    return lambda: f"unit-{next(numbers)}"

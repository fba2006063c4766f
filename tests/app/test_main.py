"""The application's beginning and end."""

import asyncio
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.app.serving import NoEngine, save_base, set_up
from tests.live_server import live_server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", base_model=str(save_base(tmp_path / "tiny-llama")))


def test_making_the_application_touches_nothing(settings: Settings) -> None:
    engine = NoEngine()
    create_app(settings, engine=engine)
    assert not settings.home.exists()
    assert engine.calls == []


def test_everything_started_is_ended(settings: Settings) -> None:
    asyncio.run(set_up(settings))
    engine = NoEngine()
    with live_server(create_app(settings, engine=engine)) as url:
        assert httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200
        assert len(list((settings.home / "spool").iterdir())) == 1
        assert engine.calls == ["start"]
    assert engine.calls == ["start", "stop"]
    assert list((settings.home / "spool").iterdir()) == []


def test_a_registry_that_needs_migrating_is_not_served(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    engine = NoEngine()
    settings.home.mkdir()
    with pytest.raises(RuntimeError, match="did not start"), live_server(create_app(settings, engine=engine)):
        pass
    assert "tenora migrate" in caplog.text
    assert engine.calls == []


def test_an_engine_that_does_not_start_is_ended_too(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(set_up(settings))
    engine = NoEngine()
    engine.works = False
    with pytest.raises(RuntimeError, match="did not start"), live_server(create_app(settings, engine=engine)):
        pass
    assert "the engine is starting" in caplog.text
    assert engine.calls == ["start", "stop"]
    assert list((settings.home / "spool").iterdir()) == []

"""The application's beginning and end."""

import asyncio
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from app.store import configured_store
from tests.app.serving import NoEngine, save_base, set_up
from tests.e2e.server import free_port
from tests.live_server import live_server
from tests.s3server import fake_credentials


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


def test_the_store_of_another_registry_is_not_served(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(set_up(settings))
    configured_store(settings).claim("f" * 32)
    engine = NoEngine()
    with pytest.raises(RuntimeError, match="did not start"), live_server(create_app(settings, engine=engine)):
        pass
    assert "The store belongs to registry ffff" in caplog.text
    assert engine.calls == []


def test_a_store_that_becomes_another_registrys_ends_readiness(settings: Settings) -> None:
    asyncio.run(set_up(settings))
    with live_server(create_app(settings, engine=NoEngine())) as url:
        configured_store(settings).take_over("f" * 32)
        checks = {}
        while checks.get("store", "ok") == "ok":
            checks = httpx.get(f"{url}/health/ready", trust_env=False).json()["checks"]
    assert checks["store"] == "belongs to another registry"


def test_a_server_starts_although_its_store_does_not_answer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_credentials(monkeypatch)
    away = {"store_url": "s3://bucket/p", "s3_endpoint_url": f"http://127.0.0.1:{free_port()}", "s3_region": "x"}
    settings = settings.model_copy(update=away)
    asyncio.run(set_up(settings))
    with live_server(create_app(settings, engine=NoEngine())) as url:
        answer = httpx.get(f"{url}/health/ready", trust_env=False, timeout=30)
    assert (answer.status_code, answer.json()["checks"]["store"]) == (503, "does not answer")

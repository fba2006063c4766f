"""Application startup and shutdown."""

import asyncio
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from app.main import create_app
from app.settings import Settings
from app.wiring.store import configured_store
from tests.support.live_server import live_server
from tests.support.s3server import fake_credentials
from tests.support.server import free_port
from tests.support.serving import NoEngine, save_base, set_up


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
    assert "tenora server migrate" in caplog.text
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
    assert checks["store"] == "The store belongs to another registry."


def test_a_server_starts_although_its_store_does_not_answer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_credentials(monkeypatch)
    away = {"store_url": "s3://bucket/p", "s3_endpoint_url": f"http://127.0.0.1:{free_port()}", "s3_region": "x"}
    settings = settings.model_copy(update=away)
    asyncio.run(set_up(settings))
    with live_server(create_app(settings, engine=NoEngine())) as url:
        answer = httpx.get(f"{url}/health/ready", trust_env=False, timeout=30)
    assert (answer.status_code, answer.json()["checks"]["store"]) == (503, "The store does not answer.")


@pytest.fixture
def little_room() -> Iterator[None]:
    """Limit SQLite databases to 16 more pages, as on a full disk."""

    def limit(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA page_count")
        cursor.execute(f"PRAGMA max_page_count={cursor.fetchone()[0] + 16}")
        cursor.close()

    event.listen(Pool, "connect", limit)
    yield
    event.remove(Pool, "connect", limit)


def test_a_full_database_is_named_wherever_somebody_looks(
    settings: Settings, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    key = asyncio.run(set_up(settings))
    request.getfixturevalue("little_room")
    headers = {"authorization": f"Bearer {key}"}
    with (
        live_server(create_app(settings, engine=NoEngine())) as url,
        httpx.Client(base_url=url, headers=headers, trust_env=False) as client,
    ):
        assert client.get("/health/ready").json()["status"] == "ready"
        for number in itertools.count():
            answer = client.post("/admin/tenants", json={"slug": f"unit-{number}", "name": "x" * 100})
            if answer.status_code != 201:
                break
        ready, metrics = client.get("/health/ready"), client.get("/metrics").text
        assert client.get("/admin/tenants").status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "registry_unavailable")
    assert "has no room left" in answer.json()["error"]["message"]
    # Inference still works, so a load balancer must not remove the server.
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    said = "The registry's database has no room left, so nothing can be changed."
    assert ready.json()["checks"]["database"] == said
    assert "database or disk is full" in caplog.text
    failures = re.search(r'^tenora_database_failures_total\{cause="disk_full"\} (.*)$', metrics, re.MULTILINE)
    assert failures is not None
    assert float(failures[1]) >= 1
    assert str(settings.home) not in answer.text + ready.text

"""Upgrade from the release before: its data is served afterwards, and its server goes on during the migration."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.postgres import running_postgres
from tests.support.server import TENORA, environment, serving, set_up, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

#: Code of release 0.2.0: ``git archive 518a06e4 app adapters migrations alembic.ini pyproject.toml``. A checkout may
#: lack earlier commits.
RELEASE = Path(__file__).with_name("release-0.2.0.tar.xz")
BODY = {"prompt": "[INST] Can you explain sugar? [/INST]", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
#: Answers during and after the migration.
ANSWERS = 20


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Code of the release before. Its lock has the same vLLM and torch, so it runs in this environment."""
    folder = tmp_path_factory.mktemp("release")
    shutil.unpack_archive(RELEASE, folder)
    return folder


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Settings of the database."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield {}
        else:
            yield {"TENORA_DATABASE_URL": stack.enter_context(running_postgres())}


@contextmanager
def asking(url: str, key: str) -> Iterator[list[int]]:
    """Ask one request after the other meanwhile, and collect the statuses of the answers."""
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120) as client:
            while not ended.is_set():
                statuses.append(client.post("/v1/completions", json=BODY | {"model": "quotes"}).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        thread.join()


def answer(client: httpx.Client) -> str:
    done = client.post("/v1/completions", json=BODY | {"model": "quotes"})
    assert done.status_code == 200, done.text
    return str(done.json()["choices"][0]["text"])


def test_data_of_the_release_before_is_served(
    release: Path, database: dict[str, str], trained_demo: Demo, tmp_path: Path
) -> None:
    home, base = tmp_path / "home", trained_demo.base
    home.mkdir()
    settings: dict[str, Any] = SLOTS | database
    earlier: dict[str, Any] = settings | {"PYTHONPATH": str(release)}
    code = f"import app; assert app.__path__ == ['{release}/app'], app.__path__; from app.cli import main; main()"
    # Without -P, the folder of this process would come first.
    program = (sys.executable, "-P", "-c", code)
    admin_key = set_up(home, base, program=program, **earlier)

    def run(*arguments: str) -> str:
        variables = environment(home, base, **settings)
        command = [TENORA, "server", *arguments]
        return subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout

    with serving(home, base, admin_key, program=program, **earlier) as server:
        key = server.tenant("unit", scopes=("inference", "usage:read"))
        assert server.publish("unit", "quotes", trained_demo.adapters["pricing"]).status_code == 201
        with server.client(key) as client:
            before = answer(client)
        with asking(server.url, key) as statuses:
            until(lambda: len(statuses) >= ANSWERS, 120)
            run("migrate")
            enough = len(statuses) + ANSWERS
            until(lambda: len(statuses) >= enough, 120)
        assert set(statuses) == {200}
        # It still changes the registry.
        assert server.publish("unit", "late", trained_demo.adapters["pricing"]).status_code == 201
    with serving(home, base, admin_key, **settings) as server, server.client(key) as client:
        assert answer(client) == before
        assert answer(client) == before
        until(lambda: requests_of(client) == len(statuses) + 3, 30)
        assert json.loads(run("audit", "verify", "--json"))["problems"] == []
        assert json.loads(run("gc", "--dry-run", "--json"))["dangling"] == []


def requests_of(client: httpx.Client) -> int:
    found = client.get("/v1/usage", params={"by": ""})
    assert found.status_code == 200, found.text
    return sum(row["requests"] for row in found.json()["data"])

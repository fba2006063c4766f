"""``tenora engine show`` and ``tenora engine top`` against a live server."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.database.session import Database
from app.database.urls import database_url
from app.domain.load_phases import LoadPhases
from app.domain.node_snapshots import NodeRole
from app.engine.port import EngineEvent
from app.engine.status import EngineState, ReplicaStatus
from app.services.operations.node_snapshot import NodeReporter
from app.services.operations.nodes import NodeService
from tests.support.cli import Tenora
from tests.support.overviews import overview, queue, residency
from tests.support.serving import NoEngine, save_base
from tests.support.site import Site, running_site

HOSTILE = "\x1b[2J[red]"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a fake engine that reports versions and queues."""
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    with running_site(tmp_path_factory.mktemp("home"), base) as site:
        site.engine.tell(EngineEvent("load", 1, 1.0, LoadPhases(0.5, 0.25, 0.125, 0.125)))
        shown = overview(
            replace(residency(7, running=1, waiting=2, oldest_wait_s=1.5), draining=True, bytes=37_000_000),
            *(residency(number, "disk") for number in range(100, 130)),
            tenants=(queue("pricing", running=1, waiting=2, weight=4.0), queue(HOSTILE), queue("", running=1)),
        )
        site.engine.shown = shown
        yield site


@pytest.fixture
def tenora(site: Site, clean_environment: None) -> Tenora:
    return Tenora({"TENORA_URL": site.url, "TENORA_KEY": site.admin_key, "COLUMNS": "200"})


def test_show_prints_every_part(tenora: Tenora) -> None:
    shown = tenora("engine", "show").stdout
    assert "ready  slots 1/4 (0 pinned)  window 2/64  waiting 2  tenants 3  adapters 31  restarts 0 (0 hangs)" in shown
    lines = ["|".join(re.split(r"  +", line)) for line in shown.splitlines()]
    assert "disk|3.0 kB|17.2 GB|3|1|75.0%|2|1" in lines
    assert "slot|-|-|9|4|69.2%|5|0" in lines
    assert "total|1.000 s|1.000 s" in lines
    assert "pricing|4.0|1|2|100" in lines
    assert "(the server)|1.0|1|0|100" in lines
    assert sum("|slot|no|yes|3|1|2|1.5 s|37.0 MB" in line for line in lines) == 1
    assert sum("|disk|no|" in line for line in lines) == 30


def test_nodes_and_replicas_are_shown(site: Site, tenora: Tenora, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ReplicaStatus("f" * 32, EngineState.READY, 4, 3, 2, 1, loads=9, requests=8, retries=7, lost=6)
    monkeypatch.setattr(site.engine, "shown", replace(site.engine.shown, replicas=(replica,)))
    asyncio.run(_add_nodes(site))
    lines = ["|".join(re.split(r"  +", line)) for line in tenora("engine", "show").stdout.splitlines()]
    assert "f" * 32 + "|ready|3|4|2|1|9|8|7|6" in lines
    [engine] = [line for line in lines if line.startswith("engine host|")]
    assert re.fullmatch(r"engine host\|e{32}\|replica\|yes\|\S+\|-\|ready\|1/4\|0\|0\|[0-9]+ s", engine)
    # A node of a release that reports nothing.
    [old] = [line for line in lines if line.startswith("old host|")]
    assert re.fullmatch(r"old host\|0{32}\|-\|yes\|\S+\|-\|-\|-\|-\|-\|-", old)


async def _add_nodes(site: Site) -> None:
    engine = NoEngine()
    engine.shown = overview(residency(1))
    reporter = NodeReporter(engine, NodeRole.REPLICA, "b" * 64)
    database = Database(database_url(site.settings))
    for identity, report in (("e", reporter.report), ("0", None)):
        name = "engine host" if report else "old host"
        node = NodeService(database, identity * 32, name, report=report)
        await node.register()
        await node.beat()
    await database.close()


def test_json_is_what_the_server_said(tenora: Tenora) -> None:
    for arguments in (("show",), ("top", "--once")):
        view = tenora.json("engine", *arguments)
        assert view["slots"] == {"total": 4, "used": 1, "pinned": 0}
        assert view["tenants"]["data"][0]["tenant"] == "pricing"


def test_top_is_short_unless_told_otherwise(tenora: Tenora) -> None:
    assert len(tenora.json("engine", "top", "--once")["versions"]["data"]) == 20
    assert len(tenora.json("engine", "top", "--once", "--limit", "25")["versions"]["data"]) == 25


@pytest.fixture
def two_looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Interrupt the command in its second pause. Yields the list of the requested pauses in seconds."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("tenora_client.cli.engine.time", SimpleNamespace(sleep=sleep))
    return pauses


def test_top_looks_again_until_interrupted(tenora: Tenora, two_looks: list[float]) -> None:
    result = tenora("engine", "top", "--interval", "2s", exit_code=130)
    assert result.stdout.count("slots 1/4") == 2
    assert two_looks == [2, 2]


def test_json_is_one_line_a_look(tenora: Tenora, two_looks: list[float]) -> None:
    lines = tenora("engine", "top", "--json", exit_code=130).stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["ready", "ready"]


def test_a_terminal_is_redrawn_and_given_back(tenora: Tenora, two_looks: list[float]) -> None:
    drawn = tenora("engine", "top", exit_code=130, FORCE_COLOR="1", TERM="xterm", LINES="80").stdout
    assert drawn.count("slots 1/4") == 2
    # The command leaves the alternate screen, and text from the server cannot move the cursor.
    assert drawn.index("\x1b[?1049h") < drawn.index("slots 1/4") < drawn.rindex("\x1b[?1049l")
    assert "[2J[red]" in drawn
    assert "\x1b[2J" not in drawn


def test_what_is_refused_is_said(tenora: Tenora, site: Site) -> None:
    slug = tenora.json("tenants", "create", "someone")["slug"]
    own = tenora("keys", "create", "ci", "--tenant", slug, "--scope", "adapters:read").stdout.strip()
    for command in ("show", "top"):
        assert "403" in tenora("engine", command, exit_code=1, TENORA_KEY=own).stderr
    assert "--interval" in tenora("engine", "top", "--interval", "0s", exit_code=2).stderr

"""Prefetch after a restart: the server loads the working set of its last run."""

import json
import time
from pathlib import Path

from app.engine.status import EngineState
from tests.support.serving import PeftFiles
from tests.support.site import Site, make_unit, parts, running_site


def ask_for_an_adapter(site: Site, files: PeftFiles) -> None:
    with site.client(site.admin_key) as admin:
        unit = make_unit(admin)
    with site.client(unit.key) as client:
        assert client.post("/v1/adapters/quotes/versions", files=parts(files)).status_code == 201
        # No engine runs here, but the name is still resolved.
        assert client.post("/v1/completions", json={"model": "quotes", "prompt": "x"}).status_code == 503


def test_the_working_set_outlives_a_restart(base: Path, files: PeftFiles, tmp_path: Path) -> None:
    with running_site(tmp_path, base) as site:
        ask_for_an_adapter(site, files)
    (used,) = json.loads((tmp_path / "working-set.json").read_text())["versions"]
    with running_site(tmp_path, base) as site:
        site.engine.state = EngineState.READY
        deadline = time.monotonic() + 10
        while not site.engine.prefetched:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert site.engine.prefetched == [used["id"]]


def test_a_broken_working_set_keeps_no_server_from_starting(base: Path, tmp_path: Path) -> None:
    (tmp_path / "working-set.json").write_bytes(b"\xff[[[[")
    with running_site(tmp_path, base) as site, site.client(None) as client:
        assert client.get("/health/live").status_code == 200

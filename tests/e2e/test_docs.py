"""The commands of README.md and docs/, page by page, each page in one shell against a demo server.

A block runs unless its fence says why not: "```sh not run: needs a GPU". tests/unit/docs checks all blocks without a
server.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from app.demo.train import Demo
from tests.support.pages import ROOT, pages, script
from tests.support.server import START_S, TENORA, free_port, until

pytestmark = pytest.mark.slow

DAY = "docs/quickstart.md"
PAGES = [page for page in pages() if script(page)]
ADDRESS = "127.0.0.1:8000"
_PAGE_S, _DELETION_S = 600, 60


@dataclass(frozen=True, slots=True)
class DemoServer:
    """Running ``tenora server serve --demo``.

    Attributes:
        home: its HOME, with the demo's models.
        address: host and port.
        admin_key: its platform key.
    """

    home: Path
    address: str
    admin_key: str

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.admin_key}"}
        return httpx.Client(base_url=f"http://{self.address}", headers=headers, timeout=120, trust_env=False)

    def variables(self) -> dict[str, str]:
        url = f"http://{self.address}"
        # A page may set PATH in a block that does not run here.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {
            "TENORA_URL": url,
            "TENORA_KEY": self.admin_key,
            "PATH": path,
            "PYTHON": sys.executable,
            "COLUMNS": "200",
        }
        return _environment(self.home) | own


def _environment(home: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    return clean | {"TENORA_HOME": str(home), "TENORA_DRAIN_SECONDS": "0"}


@pytest.fixture(scope="module")
def demo(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    home, port = tmp_path_factory.mktemp("home"), free_port()
    (home / "demo").symlink_to(trained_demo.base.parent)
    with (home / "server.log").open("wb") as log:
        command = [TENORA, "serve", "--demo", "--port", str(port)]
        process = subprocess.Popen(command, env=_environment(home), stdout=log, stderr=log)
        try:
            yield DemoServer(home, f"127.0.0.1:{port}", _access(process, home)["admin_key"])
        finally:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            _, alive = psutil.wait_procs(left, timeout=30)
            assert not alive, f"left running: {alive}"


def _access(process: subprocess.Popen[bytes], home: Path) -> dict[str, Any]:
    """Read demo.json, which the server writes once the demo's adapters are published."""

    def is_written() -> bool:
        assert process.poll() is None, (home / "server.log").read_text()
        return (home / "demo.json").exists()

    until(is_written, START_S)
    return dict(json.loads((home / "demo.json").read_text()))


@pytest.fixture
def folder(demo: DemoServer, tmp_path: Path) -> Iterator[Path]:
    """Folder like a checkout after ``make serve``. Tenants that a page leaves behind are deleted at the end."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / ".tenora").mkdir()
    (tmp_path / ".tenora" / "demo").symlink_to(demo.home / "demo")
    for name in ("deploy", "migrations"):
        (tmp_path / name).symlink_to(ROOT / name)
    with demo.client() as admin:
        before = _tenants(admin)
        yield tmp_path
        for tenant in _tenants(admin) - before:
            for adapter in admin.get(f"/admin/tenants/{tenant}/adapters").json()["data"]:
                path = f"/admin/tenants/{tenant}/adapters/{adapter['name']}"
                assert admin.delete(path, params={"force": True}).is_success
            until(lambda path=f"/admin/tenants/{tenant}": admin.delete(path).is_success, _DELETION_S)


def _tenants(admin: httpx.Client) -> set[str]:
    return {tenant["slug"] for tenant in admin.get("/admin/tenants", params={"limit": 100}).json()["data"]}


def run(page: str, demo: DemoServer, folder: Path) -> None:
    """Run a page's commands in one shell, and fail with its output if one of them fails."""
    # Background processes of a failed command would keep the pipes open.
    ready = "set -mx; trap 'kill $(jobs -p) || true' EXIT\n"
    bash = ["bash", "-euo", "pipefail", "-c", ready + script(page).replace(ADDRESS, demo.address)]
    done = subprocess.run(
        bash, cwd=folder, env=demo.variables(), capture_output=True, text=True, timeout=_PAGE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != DAY])
def test_every_command_of_the_page_works(page: str, demo: DemoServer, folder: Path) -> None:
    run(page, demo, folder)


def test_a_day_with_an_adapter_ends_as_the_quickstart_says(demo: DemoServer, folder: Path) -> None:
    run(DAY, demo, folder)
    with demo.client() as admin:
        adapter = admin.get("/admin/tenants/retail/adapters/quotes").json()
        deleted = admin.get("/admin/tenants/retail/adapters/quotes/versions/2")
    assert (adapter["versions"], adapter["aliases"]) == ([3, 1], {"default": {"3": 100}})
    assert deleted.status_code == 404
    assert {path.name for path in (folder / ".tenora" / "backup").iterdir()} == {CONFIG_NAME, WEIGHTS_NAME}
    assert "version.ready" in (folder / ".tenora" / "events.log").read_text()

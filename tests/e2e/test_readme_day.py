"""The README's day with an adapter, command by command, in one shell."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from app.demo.train import Demo
from tests.e2e.server import Server, environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def day(server: Server, trained_demo: Demo, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the section's commands in a folder with `.venv` and `.tenora`, as `make serve` has."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / ".tenora").mkdir()
    (tmp_path / ".tenora" / "demo").symlink_to(next(iter(trained_demo.adapters.values())).parent.parent)
    client = {"TENORA_URL": server.url, "TENORA_KEY": server.admin_key}
    variables = environment(server.home, trained_demo.base) | client | {"COLUMNS": "200"}
    # Background processes of a failed command would keep the pipes open.
    ready = "set -mx; trap 'kill $(jobs -p) || true' EXIT\n"
    bash = ["bash", "-euo", "pipefail", "-c", ready + commands()]
    return subprocess.run(bash, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600, check=False)


def commands() -> str:
    readme = (ROOT / "README.md").read_text()
    section = re.search(r"^## A day with an adapter\n(.*?)^## ", readme, re.DOTALL | re.MULTILINE)
    assert section is not None
    return "\n".join(re.findall(r"```sh\n(.*?)```", section[1], re.DOTALL))


def test_every_command_of_the_page_works(day: subprocess.CompletedProcess[str], server: Server, tmp_path: Path) -> None:
    assert day.returncode == 0, f"{day.stdout[-3000:]}\n{day.stderr[-3000:]}"
    with server.client(server.admin_key) as admin:
        adapter = admin.get("/admin/tenants/retail/adapters/quotes").json()
        deleted = admin.get("/admin/tenants/retail/adapters/quotes/versions/2")
    assert (adapter["versions"], adapter["aliases"]) == ([3, 1], {"default": {"3": 100}})
    assert deleted.status_code == 404
    assert {path.name for path in (tmp_path / ".tenora" / "backup").iterdir()} == {CONFIG_NAME, WEIGHTS_NAME}
    assert "version.ready" in (tmp_path / ".tenora" / "events.log").read_text()

"""``status``, ``version``, ``models`` and shell completion; a server that is older than the client."""

import os
import subprocess
import sys

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from app.api.errors import NO_ROUTE
from tenora_client import __version__
from tests.support.cli import Tenora
from tests.support.live_server import live_server


def test_status_shows_the_server_to_a_key(tenora: Tenora) -> None:
    result = tenora("status", "--json")
    assert '"base": "tiny-llama"' in result.stdout
    assert f'"client": "{__version__}"' in result.stdout
    shown = tenora("status").stdout
    assert "from TENORA_KEY" in shown


def test_status_without_a_key_shows_readiness(alone: Tenora, site: tuple[str, str]) -> None:
    result = alone("status", TENORA_URL=site[0])
    assert "ready" in result.stdout
    assert f"tenora login --url {site[0]}" in result.stderr


def test_status_of_an_unreachable_server_is_3(alone: Tenora) -> None:
    alone("status", "--url", "http://127.0.0.1:9", exit_code=3)


def test_version_shows_both_sides(tenora: Tenora, alone: Tenora) -> None:
    versions = tenora.json("version")
    assert versions["client"] == __version__
    assert versions["server"]
    assert alone("--version").stdout == f"tenora-client {__version__}\n"
    assert alone.json("version")["server"] is None


def test_a_server_that_is_not_ready_is_1(alone: Tenora) -> None:
    app = FastAPI()

    @app.get("/health/ready")
    def ready() -> JSONResponse:
        return JSONResponse({"status": "not_ready", "checks": {"engine": "loading", "store": "ok"}}, 503)

    with live_server(app) as url:
        shown = alone("status", "--url", url, exit_code=1).stdout
    assert "engine -> loading" in shown
    assert "store" not in shown


def old_server() -> FastAPI:
    """Build a server that has none of the routes of this release, but tells its release."""
    app = FastAPI()

    @app.get("/v1/server")
    def server() -> dict[str, str]:
        return {"version": "0.1.4"}

    @app.exception_handler(404)
    def missing(request: object, error: Exception) -> JSONResponse:
        body = {"message": NO_ROUTE, "type": "not_found_error", "param": None, "code": "not_found"}
        return JSONResponse({"error": body}, 404)

    return app


def test_an_older_server_gets_a_sentence_with_both_releases(alone: Tenora) -> None:
    with live_server(old_server()) as url:
        error = alone("whoami", "--url", url, "--key", "x", exit_code=1).stderr
    assert "Tenora 0.1.4" in error
    assert f"tenora-client {__version__}" in error
    assert "Upgrade the server" in error
    assert error.count("\n") == 1


def test_an_answer_of_another_form_names_both_releases(alone: Tenora) -> None:
    app = old_server()

    @app.get("/v1/key")
    def key() -> dict[str, str]:
        return {"owner": "retail"}

    with live_server(app) as url:
        error = alone("whoami", "--url", url, "--key", "x", exit_code=1).stderr
    assert "Tenora 0.1.4" in error
    assert "cannot be read" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(alone: Tenora, shell: str) -> None:
    script = alone("completion", shell).stdout
    assert "_TENORA_COMPLETE" in script
    assert "tenora" in script


def test_bash_completes_commands() -> None:
    environment = {
        **os.environ,
        "COMP_WORDS": "tenora adapters pro",
        "COMP_CWORD": "2",
        "_TENORA_COMPLETE": "complete_bash",
    }
    code = "from tenora_client.cli.root import app; app(prog_name='tenora')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["promote"]


def test_models_are_listed(tenora: Tenora, new_slug: object) -> None:
    slug = new_slug()  # type: ignore[operator]
    tenora("tenants", "create", slug)
    key = tenora.json("keys", "create", "x", "--tenant", slug)["key"]
    assert tenora("models", "list", "-o", "name", TENORA_KEY=key).stdout == "tiny-llama\n"


def test_h_is_help_everywhere(alone: Tenora) -> None:
    for command in ([], ["adapters"], ["adapters", "push"], ["login"], ["server", "init"]):
        assert "Usage" in alone(*command, "-h").stdout

"""Tools that read the OpenAPI document: generators, whose clients call a demo server, and linters."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.install import FOLDER, HERE, node, python_of
from tests.support.demo_server import succeeds
from tests.support.openapi import operations, successes

TOOLS = HERE / "openapi"
PACKAGES = FOLDER / "openapi" / "node_modules"
GENERATOR = "openapi_python_client"


@pytest.fixture(scope="module")
def document(demo: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the live server's document."""
    saved = tmp_path_factory.mktemp("openapi") / "openapi.json"
    saved.write_bytes(httpx.get(f"{_root(demo)}/openapi.json", trust_env=False).raise_for_status().content)
    return saved


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Make a folder in which Node finds the tools' packages."""
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    shutil.copy(FOLDER / "openapi" / "package.json", tmp_path)
    return tmp_path


def test_openapi_python_client_generates_a_client_that_works(
    demo: dict[str, str], document: Path, tmp_path: Path
) -> None:
    scripts = python_of(GENERATOR).parent
    generated = tmp_path / "tenora_api"
    source = ["--url", f"{_root(demo)}/openapi.json", "--output-path", generated, "--meta", "none"]
    # It formats the client with ruff, which its environment has.
    path = {"PATH": os.pathsep.join([str(scripts), os.environ["PATH"]])}
    succeeds([scripts / "openapi-python-client", "generate", *source, "--fail-on-warning"], path, tmp_path)

    described = json.loads(document.read_bytes())
    for path_, method, operation in operations(described):
        module = generated / "api" / operation["tags"][0] / f"{_snake_case(operation['operationId'])}.py"
        text = module.read_text(encoding="utf-8")
        for kind, media in successes(operation):
            assert _result(kind, media["schema"]) in text, (path_, method, kind)

    program = HERE / "python" / f"{GENERATOR}_client.py"
    succeeds([python_of(GENERATOR), "-I", program], demo | {"GENERATED": str(tmp_path)}, tmp_path)


def test_openapi_typescript_generates_types_that_work(demo: dict[str, str], document: Path, workspace: Path) -> None:
    for name in ("program.ts", "tsconfig.json"):
        shutil.copy(TOOLS / name, workspace)
    _run("openapi-typescript/bin/cli.js", [document, "--output", "schema.d.ts"], workspace)
    types = (workspace / "schema.d.ts").read_text(encoding="utf-8")
    for path, method, operation in operations(json.loads(document.read_bytes())):
        assert f'{method}: operations["{operation["operationId"]}"];' in types, path
    _run("typescript/bin/tsc", ["--noEmit", "--project", "tsconfig.json"], workspace)
    succeeds([node(), "program.ts"], demo, workspace)


def test_spectral_has_no_objection(document: Path, workspace: Path) -> None:
    options = ["--ruleset", TOOLS / "spectral.yml", "--fail-severity", "hint"]
    _run("@stoplight/spectral-cli/dist/index.js", ["lint", *options, document], workspace)


def test_redocly_has_no_objection(document: Path, workspace: Path) -> None:
    options = ["--config", TOOLS / "redocly.yml", "--format", "json"]
    found = _run("@redocly/cli/bin/cli.js", ["lint", *options, document], workspace)
    problems = json.loads(found)["problems"]
    assert [problem["message"] for problem in problems] == []


def _root(demo: dict[str, str]) -> str:
    return demo["TENORA_URL"].removesuffix("/v1")


def _run(script: str, arguments: list[str | Path], folder: Path) -> str:
    return succeeds([node(), PACKAGES / script, *arguments], {"REDOCLY_TELEMETRY": "off"}, folder)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _result(kind: str, schema: dict[str, Any]) -> str:
    """Return the code that a generated module has for an answer: how it parses it, or its attribute."""
    if kind.startswith("text/"):
        # A module reads the first kind of answer only.
        return "response."
    if "$ref" in schema:
        return f"{schema['$ref'].rpartition('/')[2]}.from_dict(response.json())"
    return "response.content" if kind == "application/octet-stream" else "response."

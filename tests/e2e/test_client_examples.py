"""The client's notebook and CI recipe, with the real engine: publish a candidate, ask it, promote it."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo.train import Demo
from tenora_client import AsyncClient, Client
from tests.support.server import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "client" / "examples"
_STEP_S = 300
_OUTPUT = re.compile(r"\$\{\{ steps\.publish\.outputs\.(\w+) \}\}")


@pytest.fixture
def environment(server: Server, trained_demo: Demo, request: pytest.FixtureRequest) -> dict[str, str]:
    """Environment of an example: a new tenant, and the demo's adapter for prices."""
    tenant = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {
        "TENORA_URL": server.url,
        "TENORA_KEY": server.tenant(tenant),
        "ADAPTER": "quotes",
        "ADAPTER_FOLDER": str(trained_demo.adapters["pricing"]),
        "GITHUB_SHA": "0123abcd",
        "PATH": programs,
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")} | own


def promoted(environment: dict[str, str]) -> dict[str, int]:
    with Client(environment["TENORA_URL"], environment["TENORA_KEY"]) as tenora:
        (version,) = tenora.adapters.versions("quotes")
        assert sorted(version.aliases) == ["candidate", "default"]
        return dict(tenora.adapters.alias("quotes").weights)


@pytest.mark.slow
def test_the_notebook_publishes_and_promotes(environment: dict[str, str], tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "publish_and_promote.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")
    for cell in cells:
        ast.parse(cell)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(cells)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_STEP_S,
    )
    assert done.returncode == 0, done.stderr
    assert "(nothing in service)" in done.stdout
    assert promoted(environment) == {"1": 100}


@pytest.mark.slow
def test_the_ci_recipe_publishes_and_promotes(environment: dict[str, str], tmp_path: Path) -> None:
    recipe: dict[Any, Any] = yaml.safe_load((EXAMPLES / "publish.yml").read_text())
    job = recipe["jobs"]["publish"]
    # The environment of the job, as the test has it, and the client that is installed here.
    assert set(job["env"]) == {"TENORA_URL", "TENORA_KEY", "ADAPTER", "ADAPTER_FOLDER"}
    steps = [step["run"] for step in job["steps"] if "run" in step and not step["run"].startswith("pip install")]
    assert len(steps) == 3
    outputs = tmp_path / "outputs"
    outputs.touch()
    for step in steps:
        values = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        command = _OUTPUT.sub(lambda found, values=values: values[found[1]], step)
        assert "${{" not in command
        done = subprocess.run(
            ["/bin/bash", "-eo", "pipefail", "-c", command],
            cwd=tmp_path,
            env={**environment, "GITHUB_OUTPUT": str(outputs)},
            capture_output=True,
            text=True,
            timeout=_STEP_S,
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}\n{done.stderr}"
    assert promoted(environment) == {"1": 100}
    with Client(environment["TENORA_URL"], environment["TENORA_KEY"]) as tenora:
        assert tenora.adapters.version("quotes", 1).labels == {"commit": "0123abcd"}


async def test_the_library_chats_streams_and_counts(server: Server, keys: dict[str, str]) -> None:
    key, prompt = keys["pricing"], "[INST] Can you explain sugar? [/INST]"
    with Client(server.url, key) as tenora:
        whole = tenora.chat("pricing", "How much is sugar?", max_tokens=16, temperature=0)
        assert str(whole) == whole.text != ""
        assert whole.version == "pricing@1"
        assert whole.usage["completion_tokens"] <= 16
        pieces = list(tenora.stream_chat("pricing", "How much is sugar?", max_tokens=16, temperature=0))
        assert len(pieces) > 1
        assert "".join(pieces) == whole.text
        text = tenora.complete("pricing", prompt, max_tokens=16, temperature=0).text
        assert "".join(tenora.stream_complete("pricing", prompt, max_tokens=16, temperature=0)) == text
        assert "pricing" in {model.id for model in tenora.models()}
    async with AsyncClient(server.url, key) as tenora:
        again = await tenora.chat(
            "pricing", [{"role": "user", "content": "How much is sugar?"}], max_tokens=16, temperature=0
        )
        assert again.text == whole.text
        assert (
            "".join([piece async for piece in tenora.stream_complete("pricing", prompt, max_tokens=16, temperature=0)])
            == text
        )

"""`tenora verify` against real engines in float32 and bfloat16, with a sound adapter and a changed one."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from app.demo.train import Demo
from tests.support.server import TENORA, Server, environment, running

pytestmark = pytest.mark.slow

UNIT = "pricing"
#: Tensor of the adapter whose sign changes the answers least.
CHANGED = "base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight"


def verify(server: Server, base: Path, key: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command and return its exit code and JSON."""
    done = subprocess.run(
        [TENORA, "verify", *options, "--url", server.url, "--json"],
        env=environment(server.home, base, TENORA_KEY=key),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.fixture(scope="module")
def bfloat16(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("verify")
    with running(home, trained_demo.base, TENORA_ENGINE__DTYPE="bfloat16") as server:
        yield server


@pytest.fixture(scope="module")
def changed(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter with the sign of one tensor changed."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copy(trained_demo.adapters[UNIT] / "adapter_config.json", folder)
    weights = load_file(trained_demo.adapters[UNIT] / "adapter_model.safetensors")
    weights[CHANGED] = -weights[CHANGED]
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def test_float32_gives_the_references_greedy_tokens(server: Server, keys: dict[str, str], trained_demo: Demo) -> None:
    code, found = verify(server, trained_demo.base, keys[UNIT], f"{UNIT}/{UNIT}@1", "--dtype", "float32")
    assert (code, found["right"], found["reasons"]) == (0, True, [])
    assert [one["prompt_tokens"] for one in found["prompts"]] == [8, 8, 24, 24, 72, 72, 512, 512]
    assert [one["first_other"] for one in found["prompts"]] == [None] * 8
    assert found["bound_largest"] == found["bound_mean"] == 1e-3


def test_bfloat16_is_within_four_times_the_reference(bfloat16: Server, trained_demo: Demo, changed: Path) -> None:
    key = bfloat16.tenant(UNIT)
    assert bfloat16.publish(UNIT, UNIT, trained_demo.adapters[UNIT]).status_code == 201
    code, found = verify(bfloat16, trained_demo.base, key, f"{UNIT}@1")
    assert (code, found["reasons"]) == (0, [])
    assert max(one["largest"] for one in found["prompts"]) <= found["bound_largest"]

    # The engine serves the changed adapter, and the reference loads the sound one.
    assert bfloat16.publish(UNIT, UNIT, changed).status_code == 201
    sound = str(trained_demo.adapters[UNIT])
    code, found = verify(bfloat16, trained_demo.base, key, f"{UNIT}@2", "--files", sound)
    assert (code, found["right"]) == (1, False)
    assert "largest difference of logprobs" in found["reasons"][0]


@pytest.mark.parametrize(
    ("version", "message"),
    [("pricing", "@"), ("pricing@99", "There is no version 99")],
)
def test_a_version_that_is_not_there_is_named(
    server: Server, keys: dict[str, str], trained_demo: Demo, version: str, message: str
) -> None:
    done = subprocess.run(
        [TENORA, "verify", version, "--url", server.url],
        env=environment(server.home, trained_demo.base, TENORA_KEY=keys[UNIT]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr

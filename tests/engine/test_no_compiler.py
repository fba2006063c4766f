"""The demo on a machine without a C++ compiler: same answers, and greedy unless the request says otherwise."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from app.demo.train import Demo
from tests.support.reference import PeftReference
from tests.support.server import START_S, TENORA, environment, free_port, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

PROMPT = "[INST] Can you explain sugar? [/INST]"


def test_the_demo_answers_with_logprobs(trained_demo: Demo, reference: PeftReference, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(trained_demo.base.parent, home / "demo")
    compiled = tmp_path / "inductor"
    compiled.mkdir()
    variables = environment(
        home, trained_demo.base, **SLOTS, CXX="/nonexistent/g++", TORCHINDUCTOR_CACHE_DIR=str(compiled)
    )
    for name in ("TENORA_BASE_MODEL", "TENORA_BASE_MODEL_NAME"):
        del variables[name]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [TENORA, "serve", "--demo", "--port", str(free_port())], env=variables, stdout=log, stderr=log
        )
    try:
        until(lambda: (home / "demo.json").exists() or server.poll() is not None, START_S)
        assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
        access = json.loads((home / "demo.json").read_text())
        key = access["tenants"]["pricing"]["key"]
        body = {"model": "pricing", "prompt": PROMPT, "max_tokens": 40, "logprobs": 3}
        with httpx.Client(
            base_url=access["base_url"],
            headers={"authorization": f"Bearer {key}"},
            timeout=START_S,
            trust_env=False,
        ) as client:
            answer = client.post("/v1/completions", json=body | {"return_token_ids": True})
            several = client.post("/v1/completions", json=body | {"n": 2})
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        assert choice["token_ids"] == reference.greedy(reference.encode(PROMPT), "pricing", 40)
        assert (several.status_code, len(several.json()["choices"])) == (200, 2)
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert not list(compiled.rglob("*.so"))

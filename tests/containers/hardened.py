"""One server in a hardened container: console, publish, answer, SIGTERM in the middle of a stream, start again."""

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from app.demo.train import Demo
from tests.containers.image import IMAGE
from tests.containers.podman import FOLDER, HARDENED, Container, Watch, podman, remove, run
from tests.support.parity import QUESTIONS, prompt_of
from tests.support.reference import PeftReference
from tests.support.server import free_port, until

NAME, VOLUME = "tenora-hardened", "tenora-hardened-home"
START_S, STOP_S = 600, 90
#: Addresses of the console's files in its page.
_FILES_OF_PAGE = re.compile('(?:src|href)="(/console/[^"]+)"')
SETTINGS = ["TENORA_ENGINE__MAX_LORAS=2", "TENORA_ENGINE__MAX_LORA_RANK=16", "TENORA_ENGINE__DTYPE=float32"]
SETTINGS += ["TENORA_BASE_MODEL=/models/base", "TENORA_BASE_MODEL_NAME=demo"]


def options(demo: Demo, *, port: int | None = None) -> list[str]:
    """Return podman's options for a server of the demo's base."""
    words = [*HARDENED, f"--volume={VOLUME}:/var/lib/tenora", f"--volume={readable(demo)}:/models/base:ro"]
    words += [f"--env={setting}" for setting in SETTINGS]
    return words if port is None else [*words, f"--publish=127.0.0.1:{port}:8000"]


def readable(demo: Demo) -> Path:
    """Return a copy of the base that the user of the container may read."""
    folder = FOLDER / "models" / "base"
    if not folder.exists():
        shutil.copytree(demo.base, folder)
        run("chmod", "-R", "a+rX", str(folder.parent))
    return folder


def run_hardened(demo: Demo, watch: Watch) -> None:
    """Run the stage.

    Raises:
        AssertionError: the server behaves otherwise than on a machine.
    """
    remove([NAME], [VOLUME])
    port = free_port()
    try:
        admin_key = json.loads(podman("run", "--rm", *options(demo), IMAGE, "server", "init", "--json"))["key"]
        watch.lap("init")
        podman("run", "--detach", f"--name={NAME}", *options(demo, port=port), IMAGE)
        server = Container(NAME)
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, server.logs)
        watch.lap("ready")
        load_console(url)
        watch.lap("console")
        key = publish(url, admin_key, demo)
        expected = answers(url, key)
        assert expected == oracle(demo)
        watch.lap("published, right answers")
        assert stop_in_stream(url, key, server) == 0, server.logs()
        watch.lap("SIGTERM in the middle of a stream")
        podman("start", NAME)
        wait_ready(url, server.logs)
        assert answers(url, key) == expected
        until(lambda: requests_of(url, admin_key) == 2 * len(expected) + 1, 30)
        watch.lap("restarted, usage kept")
        assert server.stop(STOP_S) == 0, server.logs()
        watch.lap("stopped")
    finally:
        remove([NAME], [VOLUME])


def wait_ready(url: str, logs: Callable[[], str], **options: Any) -> None:
    def ready() -> bool:
        try:
            return httpx.get(f"{url}/health/ready", trust_env=False, timeout=10, **options).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(ready, START_S)
    except TimeoutError:
        raise AssertionError(f"{url} is not ready:\n{logs()[-5000:]}") from None


def load_console(url: str) -> None:
    """Load the page to which the server's address leads a browser, and each file that the page names."""
    with httpx.Client(base_url=url, headers={"accept": "text/html"}, trust_env=False, follow_redirects=True) as browser:
        page = browser.get("/")
        assert page.url.path == "/console", page.url
        files = _FILES_OF_PAGE.findall(page.text)
        assert any(file.endswith(".js") for file in files), page.text
        assert {file: browser.get(file).status_code for file in files} == dict.fromkeys(files, 200)


def publish(url: str, admin_key: str, demo: Demo, **options: Any) -> str:
    """Publish the demo's adapters as one tenant's, and return a key of the tenant."""
    headers = {"authorization": f"Bearer {admin_key}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=120, **options) as admin:
        assert admin.post("/admin/tenants", json={"slug": "unit"}).status_code == 201
        for name, folder in demo.adapters.items():
            files = {
                part: (folder / part).read_bytes() for part in ("adapter_config.json", "adapter_model.safetensors")
            }
            answer = admin.post(f"/admin/tenants/unit/adapters/{name}/versions", files=files)
            assert answer.status_code == 201, answer.text
        made = admin.post("/admin/tenants/unit/keys", json={"name": "app", "scopes": ["inference"]})
        assert made.status_code == 201, made.text
        return str(made.json()["key"])


def body(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "return_token_ids": True}


def answers(url: str, key: str, **options: Any) -> list[list[int]]:
    headers = {"authorization": f"Bearer {key}"}
    found = []
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=120, **options) as client:
        for model in ("demo", "pricing", "supply-chain"):
            for question in QUESTIONS:
                answer = client.post("/v1/completions", json=body(model, prompt_of(question), 24))
                assert answer.status_code == 200, answer.text
                found.append(list(answer.json()["choices"][0]["token_ids"]))
    return found


def oracle(demo: Demo) -> list[list[int]]:
    """Return the answers that PEFT gives."""
    peft = PeftReference(demo.base, demo.adapters)
    models = (None, "pricing", "supply-chain")
    prompts = [peft.tokenizer(prompt_of(question))["input_ids"] for question in QUESTIONS]
    return [peft.greedy(prompt, model, 24) for model in models for prompt in prompts]


def stop_in_stream(url: str, key: str, server: Container) -> int:
    """Send SIGTERM after the first event of a stream, read the stream to its end, and return the exit code."""
    codes: list[int] = []
    stopping = threading.Thread(target=lambda: codes.append(server.stop(STOP_S)))
    request = body("pricing", prompt_of(QUESTIONS[0]), 1500) | {"stream": True, "ignore_eos": True}
    events = []
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=request) as answer,
    ):
        for line in answer.iter_lines():
            if line and not events:
                stopping.start()
            if line:
                events.append(line)
    stopping.join()
    assert events[-1] == "data: [DONE]", events[-3:]
    return codes[0]


def requests_of(url: str, admin_key: str, **options: Any) -> int:
    headers = {"authorization": f"Bearer {admin_key}"}
    found = httpx.get(f"{url}/admin/usage", params={"tenant": "unit"}, headers=headers, trust_env=False, **options)
    return sum(row["requests"] for row in found.json()["data"])

"""Publishing of the demo: written files and output, against a fake server. The real server has other tests."""

import hashlib
import json
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from adapters.identity import content_digest
from app.demo.publish import DemoAccess, PublishingFailed, console_sign_in, example_calls, publish_demo
from app.demo.train import Demo

ADMIN = "tnr_admin"
CONFIG, WEIGHTS = b"{}", b"weights"
DIGEST = f"sha256:{content_digest(hashlib.sha256(CONFIG).hexdigest(), hashlib.sha256(WEIGHTS).hexdigest())}"


@dataclass
class Server:
    """Fake admin API that keeps keys, versions and uploaded adapters."""

    keys: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    refuse: str = "nothing"
    scopes: list[str] = field(default_factory=list)
    made: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, key = request.url.path, request.headers["authorization"].removeprefix("Bearer ")
        if self.refuse in path:
            return httpx.Response(503, json={"error": {"message": "the store did not answer"}})
        if path == "/v1/adapters":
            return httpx.Response(200 if key in self.keys else 401, json={"data": []})
        assert key == ADMIN
        if path == "/admin/tenants":
            return httpx.Response(409 if self.keys else 201, json={})
        if path.endswith("/keys") and request.method == "GET":
            # One key per page.
            number = int(request.url.params.get("cursor", "0"))
            shown = [{"id": str(number), "scopes": self.scopes}]
            following = number + 1
            return httpx.Response(
                200, json={"data": shown, "next_cursor": str(following) if following < self.made else None}
            )
        if path.endswith("/keys"):
            self.scopes, self.made = json.loads(request.content)["scopes"], self.made + 1
            self.keys.append(f"tnr_{len(self.keys)}")
            return httpx.Response(201, json={"key": self.keys[-1]})
        return self._versions(request, path.split("/")[-2])

    def _versions(self, request: httpx.Request, adapter: str) -> httpx.Response:
        if request.method == "GET":
            if adapter not in self.uploads:
                return httpx.Response(404, json={})
            return httpx.Response(200, json={"data": [{"digest": DIGEST}], "next_cursor": None})
        self.uploads.append(adapter)
        assert b'name="adapter_config.json"' in request.read()
        assert b'name="adapter_model.safetensors"' in request.read()
        return httpx.Response(201, json={})

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="http://127.0.0.1:8000", transport=httpx.MockTransport(self))


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    adapters = {name: tmp_path / "it's here" / name for name in ("pricing", "supply-chain")}
    for folder in adapters.values():
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_bytes(CONFIG)
        (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return Demo(tmp_path / "base", adapters)


def publish(server: Server, home: Path, demo: Demo) -> DemoAccess:
    with server.client() as client:
        return publish_demo(client, admin_key=ADMIN, home=home, demo=demo, base_model="base")


def test_demo_json_has_the_agreed_shape_and_is_private(tmp_path: Path, demo: Demo) -> None:
    publish(Server(), tmp_path, demo)
    assert json.loads((tmp_path / "demo.json").read_text()) == {
        "base_url": "http://127.0.0.1:8000",
        "base_model": "base",
        "admin_key": ADMIN,
        "tenants": {
            "pricing": {"key": "tnr_0", "adapters": ["pricing"]},
            "supply-chain": {"key": "tnr_1", "adapters": ["supply-chain"]},
        },
    }
    assert stat.S_IMODE((tmp_path / "demo.json").stat().st_mode) == 0o600


def test_a_second_start_keeps_keys_and_versions(tmp_path: Path, demo: Demo) -> None:
    server = Server()
    first = publish(server, tmp_path, demo)
    assert publish(server, tmp_path, demo) == first
    assert (len(server.keys), server.uploads) == (2, ["pricing", "supply-chain"])


def test_a_key_that_no_longer_works_is_replaced(tmp_path: Path, demo: Demo) -> None:
    server = Server()
    publish(server, tmp_path, demo)
    server.keys.remove("tnr_0")
    assert publish(server, tmp_path, demo).tenants["supply-chain"].key == "tnr_1"


def test_old_keys_that_lack_a_scope_are_replaced(tmp_path: Path, demo: Demo) -> None:
    server = Server()
    first = publish(server, tmp_path, demo)
    server.scopes = ["inference"]
    second = publish(server, tmp_path, demo)
    assert second.tenants["pricing"].key != first.tenants["pricing"].key
    assert {"inference", "batch", "adapters:read", "adapters:write", "usage:read", "keys:write"} == set(server.scopes)
    assert publish(server, tmp_path, demo).tenants["pricing"] == second.tenants["pricing"]
    # The replaced key stays valid, because users may have pasted it elsewhere.
    assert first.tenants["pricing"].key in server.keys


def test_a_refusal_names_the_step_and_writes_nothing(tmp_path: Path, demo: Demo) -> None:
    with pytest.raises(
        PublishingFailed, match=r"POST /admin/tenants/pricing/keys was answered with 503 .*the store did not answer"
    ):
        publish(Server(refuse="/keys"), tmp_path, demo)
    assert [path.name for path in tmp_path.iterdir()] == ["it's here"]


def test_the_console_is_printed_with_keys(tmp_path: Path, demo: Demo) -> None:
    access = publish(Server(), tmp_path, demo)
    assert console_sign_in(access).splitlines() == [
        "# The web console: open http://127.0.0.1:8000 and sign in with a key",
        f"#   the business unit pricing: {access.tenants['pricing'].key}",
        f"#   the business unit supply-chain: {access.tenants['supply-chain'].key}",
        f"#   the platform team: {access.admin_key}",
    ]


def test_the_printed_calls_are_shell_words(tmp_path: Path, demo: Demo) -> None:
    calls = example_calls(publish(Server(), tmp_path, demo), demo)
    commands = [shlex.split(command, comments=True) for command in calls.split("\n\n")]
    assert [command[1].removeprefix("http://127.0.0.1:8000") for command in commands] == [
        "/generate",
        "/generate",
        "/generate",
        "/v1/chat/completions",
        "/v1/adapters/my-pricing/versions",
        "/generate",
    ]
    bodies = [json.loads(command[-1]) for command in commands if command[-2] == "-d"]
    assert {body["inputs"] for body in bodies if "inputs" in body} == {"[INST] Can you explain sugar? [/INST]"}
    adapters = [body["parameters"].get("adapter_id") for body in bodies if "parameters" in body]
    assert adapters == [None, "pricing", "supply-chain", "my-pricing"]
    for word in commands[4]:
        if "=@" in word:
            assert Path(word.partition("=@")[2]).is_file()

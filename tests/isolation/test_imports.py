"""SSRF: no tenant input makes this server connect to a machine of its network, by any route."""

import ipaddress
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.support.hubserver import COMMIT, FakeHub, hub_server
from tests.support.serving import PeftFiles, save_base
from tests.support.site import Site, make_unit, parts, running_site

CONFIG = "adapter_config.json"
#: Content of the forbidden machine; it must not leak either.
INTERNAL = b"a secret of this network"


class Canary:
    """Machine of this network that records connections and sends its secret."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self.calls = listener, 0
        self.port = int(listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.calls += 1
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(INTERNAL), INTERNAL))


@contextmanager
def a_canary() -> Iterator[Canary]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        canary = Canary(listener)
        thread = threading.Thread(target=canary.serve)
        thread.start()
        try:
            yield canary
        finally:
            # close() alone does not wake a thread that is in accept().
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    with a_canary() as canary:
        yield canary


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with hub_server(FakeHub(files={CONFIG: b"{}"})) as hub:
        yield hub


@pytest.fixture(scope="module")
def importing(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> Iterator[Site]:
    """Server with a hub for imports, and a token for it."""
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    imports = {"hf": True, "hf_endpoint": hub.url, "hf_token": "hf_secret"}
    with running_site(tmp_path_factory.mktemp("importing"), base, imports=imports) as site:
        yield site


@pytest.fixture(scope="module")
def own(importing: Site) -> Iterator[httpx.Client]:
    with importing.client(importing.admin_key) as admin, importing.client(make_unit(admin).key) as client:
        yield client


def imported(own: httpx.Client, source: str) -> httpx.Response:
    return own.post("/v1/adapters/x/imports", json={"source": source})


def test_the_canary_sings(canary: Canary) -> None:
    before = canary.calls
    with httpx.Client(trust_env=False) as client:
        assert client.get(canary.url).content == INTERNAL
    assert canary.calls == before + 1


#: Redirect targets of the hub; ``{port}`` is the canary's.
REDIRECTS = {
    "loopback": "https://127.0.0.1:{port}/",
    "loopback without TLS": "http://127.0.0.1:{port}/",
    "loopback by name": "https://localhost:{port}/",
    "loopback by a name of a subdomain": "https://x.localhost:{port}/",
    "loopback in short": "https://127.1:{port}/",
    "loopback as a number": "https://2130706433:{port}/",
    "loopback in hexadecimal": "https://0x7f000001:{port}/",
    "loopback in octal": "https://0177.0.0.1:{port}/",
    "loopback in IPv6": "https://[::1]:{port}/",
    "loopback as IPv6": "https://[::ffff:127.0.0.1]:{port}/",
    "every address": "https://0.0.0.0:{port}/",
    "link-local": "http://169.254.169.254/latest/meta-data/",
    "link-local with TLS": "https://169.254.169.254/latest/meta-data/",
    "link-local in IPv6": "https://[fe80::1]/",
    "link-local as IPv6": "https://[::ffff:a9fe:a9fe]/",
    "private": "https://10.0.0.1/",
    "carrier-grade": "https://100.64.0.1/",
    "user information": "https://hub@127.0.0.1:{port}/",
    "a file": "file:///etc/passwd",
    "another protocol": "gopher://127.0.0.1:{port}/_GET",
    "relative to a host": "//127.0.0.1:{port}/",
    "a line break": "https://127.0.0.1:{port}/%0d%0ax",
    "full-width digits": "https://\uff11\uff12\uff17.0.0.1:{port}/",
}


@pytest.mark.parametrize("location", REDIRECTS.values(), ids=REDIRECTS)
def test_a_redirect_leads_nowhere_inside(own: httpx.Client, hub: FakeHub, canary: Canary, location: str) -> None:
    before = canary.calls
    target = location.format(port=canary.port).encode().decode("latin-1")
    hub.overrides[hub.path(CONFIG)] = 302, {"location": target}, b""
    answer = imported(own, f"hf://org/repo@{COMMIT}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "source_unavailable")
    assert canary.calls == before
    for told in ("127.0.0.1", "169.254", str(canary.port), INTERNAL.decode(), "hf_secret"):
        assert told not in answer.text


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([["127.0.0.1"]], id="loopback"),
        pytest.param([["8.8.8.8", "127.0.0.1"]], id="one public beside one that is not"),
        pytest.param([["::1"]], id="IPv6"),
        pytest.param([["fe80::1%1"]], id="a scope"),
        pytest.param([["64:ff9b::7f00:1"]], id="translated"),
        pytest.param([[]], id="none"),
        pytest.param([["169.254.169.254"]], id="link-local"),
    ],
)
def test_a_name_that_means_a_machine_inside(
    own: httpx.Client, hub: FakeHub, canary: Canary, monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]
) -> None:
    asked = resolving(monkeypatch, answers)
    before = canary.calls
    hub.overrides[hub.path(CONFIG)] = 302, {"location": f"https://cdn.example:{canary.port}/"}, b""
    assert imported(own, f"hf://org/repo@{COMMIT}").status_code == 503
    assert asked == ["cdn.example"]
    assert canary.calls == before


def test_a_rebound_dns_name_is_refused(
    own: httpx.Client, hub: FakeHub, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first address is public, the next one is not.

    The name is resolved once.
    """
    connected: list[str] = []
    connect = anyio.connect_tcp

    async def connecting(remote_host: str, **options: Any) -> object:
        connected.append(remote_host)
        if remote_host.startswith("203."):
            raise OSError("no network in tests")
        return await connect(remote_host, **options)

    # Documentation address (RFC 5737), treated as public here, so that a failing test contacts no real machine.
    monkeypatch.setattr("app.importing.addresses.is_public", lambda text: ipaddress.ip_address(text).packed[0] == 203)
    asked = resolving(monkeypatch, [["203.0.113.1"], ["127.0.0.1"]])
    hub.overrides[hub.path(CONFIG)] = 302, {"location": f"https://cdn.example:{canary.port}/"}, b""
    monkeypatch.setattr(anyio, "connect_tcp", connecting)
    before = canary.calls
    assert imported(own, f"hf://org/repo@{COMMIT}").status_code == 503
    assert asked == ["cdn.example"]
    # The hub itself, and the address of its redirect at the time of the check.
    assert connected == ["127.0.0.1", "203.0.113.1"]
    assert canary.calls == before


def resolving(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> list[str]:
    """Make every name resolve to these addresses, one answer after the other; yield the names that were resolved."""
    asked: list[str] = []
    left = list(answers)

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in left.pop(0)]

    loop = SimpleNamespace(getaddrinfo=getaddrinfo)
    monkeypatch.setattr("app.importing.addresses.asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    return asked


@pytest.mark.parametrize(
    "source",
    [
        "http://127.0.0.1:{port}/",
        "https://127.0.0.1:{port}/org/repo",
        "hf://127.0.0.1:{port}/repo@" + COMMIT,
        "hf://org/repo@" + COMMIT + "/../../../x",
        "hf://org/repo@" + COMMIT + "/%2e%2e",
        "hf://org@127.0.0.1:{port}/repo@" + COMMIT,
        "s3://127.0.0.1:{port}/x/",
        "s3://bucket/x/",
        "file:///etc/passwd",
        "ftp://127.0.0.1:{port}/",
    ],
)
def test_no_source_names_a_machine(own: httpx.Client, hub: FakeHub, canary: Canary, source: str) -> None:
    before, asked = canary.calls, len(hub.asked)
    assert imported(own, source.format(port=canary.port)).status_code == 400
    assert (canary.calls, len(hub.asked)) == (before, asked)


def test_addresses_in_texts_are_never_called(own: httpx.Client, canary: Canary, files: PeftFiles) -> None:
    """There are no webhooks: an address in a body, a header or a manifest is plain text."""
    before, url = canary.calls, canary.url
    options = {"training_run": url, "card": f"![x]({url})", "labels": {"callback": url}}
    sent = ("options", json.dumps(options).encode())
    assert own.post("/v1/adapters/x/versions", files=parts(files) | {"options": sent}).status_code == 201
    config = json.loads(files.config) | {"base_model_name_or_path": url, "auto_mapping": None, "revision": url}
    again = PeftFiles(json.dumps(config).encode(), files.weights)
    assert own.post("/v1/adapters/x/versions", files=parts(again)).status_code in {200, 201, 422}
    content = [{"type": "text", "text": url}, {"type": "image_url", "image_url": {"url": url}}]
    headers = {"origin": url, "referer": url, "x-callback-url": url, "x-webhook": url, "forwarded": f"for={url}"}
    for body in (
        {"messages": [{"role": "user", "content": content}]},
        {"messages": [{"role": "user", "content": url}], "user": url, "model": "x"},
        {"messages": [{"role": "user", "content": url}], "webhook": url},
    ):
        assert own.post("/v1/chat/completions", json=body, headers=headers).status_code in {400, 503}
    image = {"type": "input_image", "image_url": url}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    server = {"type": "mcp", "server_label": "x", "server_url": url}
    for path, body in (
        ("/v1/responses", {"input": [{"role": "user", "content": [image]}]}),
        ("/v1/responses", {"input": url, "tools": [server], "metadata": {"url": url}}),
        ("/v1/responses", {"input": url, "instructions": url, "metadata": {"url": url}}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [source]}], "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": url}], "max_tokens": 1, "mcp_servers": [server]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": url}], "max_tokens": 1, "system": url}),
        ("/v1/batches", {"input_file_id": "file-0", "endpoint": url, "completion_window": "24h"}),
    ):
        assert own.post(path, json=body, headers=headers).status_code in {400, 503}
    assert canary.calls == before


def test_no_route_takes_an_address_to_call() -> None:
    """By design only an import names a source of bytes.

    A link to a training run is only displayed. The endpoint of a batch is one of Tenora's routes.
    """
    schemas = create_app(Settings(home=Path("unused"))).openapi()["components"]["schemas"]
    for name in ("BatchCreate", "Batch", "PlatformBatch"):
        schemas[name]["required"].remove("endpoint")
        del schemas[name]["properties"]["endpoint"]
    described = json.dumps(schemas).lower()
    for word in ("webhook", "callback", '"url":', "notify", "endpoint"):
        found = described.count(word)
        # Address at which the server accepts parts.
        assert found == (1 if word == '"url":' else 0), word

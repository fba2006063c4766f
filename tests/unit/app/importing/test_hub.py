"""Downloads from the hub over HTTP: size caps, redirects and hosts that receive the token."""

import contextlib
import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.domain.errors import InvalidRequest, SourceUnavailable, TooLarge
from app.importing import hub as hub_module
from app.importing.addresses import NotPublic
from app.importing.hub import Hub
from app.importing.source import HubSource
from app.settings import ImportSettings
from app.support.spool import SpooledFile, SpoolWriter
from tests.support.hubserver import COMMIT, FakeHub, hub_server
from tests.support.server import free_port

NAME = "adapter_config.json"
SOURCE = HubSource("org/repo", COMMIT, "")
DATA = b"some bytes" * 1000


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with hub_server(FakeHub(files={NAME: DATA, f"sub/{NAME}": b"sub"})) as hub:
        yield hub


async def fetched(
    hub: Hub, tmp_path: Path, *, source: HubSource = SOURCE, cap: int = 2**20, name: str = NAME
) -> SpooledFile:
    writer = SpoolWriter(tmp_path / "file")
    try:
        return await hub.fetch(source, name, writer, cap)
    finally:
        await writer.abandon()


def hub_of(fake: FakeHub, **settings: object) -> Hub:
    return Hub(ImportSettings(hf=True, hf_endpoint=fake.url, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("large", [False, True])
async def test_a_file(fake: FakeHub, tmp_path: Path, large: bool) -> None:
    fake.large = large
    file = await fetched(hub_of(fake), tmp_path)
    assert file.path.read_bytes() == DATA
    assert (file.digest, file.size) == (hashlib.sha256(DATA).hexdigest(), len(DATA))
    assert fake.asked[0][0] == f"/org/repo/resolve/{COMMIT}/{NAME}"
    assert len(fake.asked) == 1 + large


async def test_a_file_of_a_subfolder(fake: FakeHub, tmp_path: Path) -> None:
    file = await fetched(hub_of(fake), tmp_path, source=HubSource("org/repo", COMMIT, "sub"))
    assert file.path.read_bytes() == b"sub"


async def test_the_token_goes_to_the_hub(fake: FakeHub, tmp_path: Path) -> None:
    fake.token = "hf_secret"
    assert (await fetched(hub_of(fake, hf_token="hf_secret"), tmp_path)).size == len(DATA)
    (tmp_path / "file").unlink()
    with pytest.raises(InvalidRequest, match="the Hub answered 401"):
        await fetched(hub_of(fake), tmp_path)


async def test_what_is_not_there(fake: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"adapter_model\.safetensors that this server may read"):
        await fetched(hub_of(fake), tmp_path, name="adapter_model.safetensors")


@pytest.mark.parametrize("told", [True, False])
async def test_a_file_beyond_its_cap(fake: FakeHub, tmp_path: Path, told: bool) -> None:
    if not told:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(DATA), DATA)
        fake.overrides[fake.path(NAME)] = 200, {"transfer-encoding": "chunked"}, body
    with pytest.raises(TooLarge):
        await fetched(hub_of(fake), tmp_path, cap=len(DATA) - 1)
    assert (tmp_path / "file").stat().st_size < len(DATA)


async def test_a_mirror_may_have_a_path(fake: FakeHub, tmp_path: Path) -> None:
    fake.overrides[f"/mirror/org/repo/resolve/{COMMIT}/{NAME}"] = 200, {}, b"mirrored"
    hub = Hub(ImportSettings(hf=True, hf_endpoint=f"{fake.url}/mirror/"))
    assert (await fetched(hub, tmp_path)).size == len(b"mirrored")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (302, {"location": "http://169.254.169.254/latest/meta-data"}),
        (302, {"location": "file:///etc/passwd"}),
        (302, {"location": "https://user:password@example.org/"}),
        (302, {"location": "//"}),
        (302, {"location": "https://[nonsense"}),
        (302, {}),
        (204, {}),
        (206, {}),
        (500, {}),
        (429, {}),
        (200, {"content-encoding": "gzip"}),
        (200, {"x-repo-commit": "f" * 40}),
    ],
)
async def test_answers_that_are_not_as_agreed(
    fake: FakeHub, tmp_path: Path, status: int, headers: dict[str, str]
) -> None:
    fake.overrides[fake.path(NAME)] = status, headers, b""
    with pytest.raises(SourceUnavailable) as caught:
        await fetched(hub_of(fake), tmp_path)
    assert "169.254" not in caught.value.message


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.1", "169.254.169.254", "10.0.0.1", "[::ffff:127.0.0.1]"]
)
async def test_hosts_of_this_network_are_never_asked(
    fake: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    fake.overrides[fake.path(NAME)] = 302, {"location": f"https://{host}/"}, b""
    with pytest.raises(SourceUnavailable):
        await fetched(hub_of(fake), tmp_path)
    # The host was refused as not public; no connection was tried.
    assert "NotPublic" in caplog.text


async def test_redirects_without_end(fake: FakeHub, tmp_path: Path) -> None:
    fake.overrides[fake.path(NAME)] = 302, {"location": fake.path(NAME)}, b""
    with pytest.raises(SourceUnavailable, match="redirected too often"):
        await fetched(hub_of(fake), tmp_path)
    assert len(fake.asked) == 6


async def test_other_bytes_than_announced(fake: FakeHub, tmp_path: Path) -> None:
    fake.large = True
    fake.overrides[f"/cdn/{hashlib.sha256(DATA).hexdigest()}"] = 200, {}, b"other bytes"
    with pytest.raises(SourceUnavailable, match="other bytes"):
        await fetched(hub_of(fake), tmp_path)


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Listen on a port, pass its connections to ``answer`` one by one, and close them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            # The thread ends when the listener is closed.
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as connection, contextlib.suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def self_signed(folder: Path) -> ssl.SSLContext:
    """Build a server's TLS context with an untrusted certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "hub.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hub.pem")
    return context


async def failure(tmp_path: Path, endpoint: str) -> SourceUnavailable:
    with pytest.raises(SourceUnavailable) as caught:
        await fetched(Hub(ImportSettings(hf=True, hf_endpoint=endpoint)), tmp_path)
    assert not re.search(r"127\.0\.0\.1|localhost|\.invalid", caught.value.message)
    return caught.value


async def test_a_hub_that_refuses_the_connection(tmp_path: Path) -> None:
    error = await failure(tmp_path, f"http://127.0.0.1:{free_port()}")
    assert error.message.startswith("The Hub refused the connection.")
    assert error.retry_after == 30


async def test_a_hub_without_an_address(tmp_path: Path) -> None:
    assert "name that cannot be resolved" in (await failure(tmp_path, "http://hub.invalid")).message


async def test_a_hub_whose_certificate_nobody_trusts(tmp_path: Path) -> None:
    context = self_signed(tmp_path)
    with listening(lambda connection: context.wrap_socket(connection, server_side=True).close()) as port:
        error = await failure(tmp_path, f"https://localhost:{port}")
    assert "TLS certificate that this server does not trust" in error.message
    assert error.retry_after is None


async def test_a_hub_that_speaks_no_tls(tmp_path: Path) -> None:
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")) as port:
        assert "could not be reached over TLS" in (await failure(tmp_path, f"https://localhost:{port}")).message


async def test_a_hub_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIMEOUT", httpx.Timeout(0.2))
    over = threading.Event()
    with listening(lambda _: over.wait() and None) as port:
        error = await failure(tmp_path, f"http://127.0.0.1:{port}")
        over.set()
    assert error.message.startswith("The Hub did not answer in time.")
    assert error.retry_after


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", b"no HTTP at all"])
async def test_a_hub_that_breaks_off(tmp_path: Path, sent: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(sent)

    with listening(answer) as port:
        assert (await failure(tmp_path, f"http://127.0.0.1:{port}")).message.startswith("The Hub broke off its answer.")


async def test_a_failing_host_behind_a_redirect_is_not_called_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "hub.example":
            return httpx.Response(302, headers={"location": "https://cdn.example/file"})
        raise httpx.ReadTimeout("too slow")

    async def addresses(host: str, port: int) -> list[str]:
        return ["203.0.113.1"]

    monkeypatch.setattr(hub_module, "public_addresses", addresses)
    hub = Hub(ImportSettings(hf=True, hf_endpoint="https://hub.example"), transport=lambda: httpx.MockTransport(answer))
    with pytest.raises(SourceUnavailable, match="host that the Hub redirected to did not answer in time"):
        await fetched(hub, tmp_path)


async def test_names_of_this_network_cannot_be_guessed_by_redirects(fake: FakeHub, tmp_path: Path) -> None:
    """A private host and a host that does not exist are refused with the same message."""
    told = set()
    for host in ("localhost", "no-such-host.invalid", "10.0.0.1"):
        fake.overrides[fake.path(NAME)] = 302, {"location": f"https://{host}/"}, b""
        with pytest.raises(SourceUnavailable) as caught:
            await fetched(hub_of(fake), tmp_path)
        told.add(caught.value.message)
        (tmp_path / "file").unlink()
    [message] = told
    assert "redirected to a host that is not public" in message


async def test_a_redirect_to_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes to a checked address, with the host's name and without the token."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.host == "hub.example":
            return httpx.Response(302, headers={"location": "https://cdn.example:8443/file?signature=x"})
        if request.url.host == "203.0.113.1":
            raise httpx.ConnectError("no route")
        return httpx.Response(200, stream=httpx.ByteStream(b"from the other host"))

    async def addresses(host: str, port: int) -> list[str]:
        assert (host, port) == ("cdn.example", 8443)
        return ["203.0.113.1", "2001:db8::1"]

    monkeypatch.setattr(hub_module, "public_addresses", addresses)
    settings = ImportSettings(hf=True, hf_endpoint="https://hub.example", hf_token="hf_secret")  # type: ignore[arg-type]
    hub = Hub(settings, transport=lambda: httpx.MockTransport(answer))
    assert (await fetched(hub, tmp_path)).size == len(b"from the other host")
    first, *others = asked
    assert first.headers["authorization"] == "Bearer hf_secret"
    assert [str(request.url.copy_with(query=None)) for request in others] == [
        "https://203.0.113.1:8443/file",
        "https://[2001:db8::1]:8443/file",
    ]
    for request in others:
        assert "authorization" not in request.headers
        assert request.headers["host"] == "cdn.example:8443"
        assert request.extensions["sni_hostname"] == "cdn.example"
        assert request.url.query == b"signature=x"


async def test_a_host_without_public_addresses_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(302, headers={"location": "https://cdn.example/"})

    async def addresses(host: str, port: int) -> list[str]:
        raise NotPublic("The address of the host is not public.")

    monkeypatch.setattr(hub_module, "public_addresses", addresses)
    settings = ImportSettings(hf=True, hf_endpoint="https://hub.example")
    with pytest.raises(SourceUnavailable):
        await fetched(Hub(settings, transport=lambda: httpx.MockTransport(answer)), tmp_path)
    assert asked == ["hub.example"]

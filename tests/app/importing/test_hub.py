"""The hub's files over HTTP: caps, redirects and who gets the token."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.errors import InvalidRequest, SourceUnavailable, TooLarge
from app.importing import hub as hub_module
from app.importing.addresses import NotPublic
from app.importing.hub import Hub
from app.importing.source import HubSource
from app.services.spool import SpooledFile, SpoolWriter
from app.settings import ImportSettings
from tests.hubserver import COMMIT, FakeHub, hub_server

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
    with pytest.raises(InvalidRequest, match="the Hub said 401"):
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
    # Not because nobody answered there.
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


async def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    hub = Hub(ImportSettings(hf=True, hf_endpoint="http://127.0.0.1:9"))
    with pytest.raises(SourceUnavailable) as caught:
        await fetched(hub, tmp_path)
    assert "127.0.0.1" not in caught.value.message


async def test_a_redirect_to_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to an address that was checked, in the host's name, without the token."""
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
        raise NotPublic("a host whose address is not public")

    monkeypatch.setattr(hub_module, "public_addresses", addresses)
    settings = ImportSettings(hf=True, hf_endpoint="https://hub.example")
    with pytest.raises(SourceUnavailable):
        await fetched(Hub(settings, transport=lambda: httpx.MockTransport(answer)), tmp_path)
    assert asked == ["hub.example"]

"""Fake server for the Hugging Face Hub's file API: ``GET /{repo}/resolve/{commit}/{path}``."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Files on the server, and the requests that it got.

    Attributes:
        files: path below ``/{repo}/resolve/{commit}/`` of each file -> its bytes.
        token: token that readers must send, if any.
        overrides: path of the URL -> status, headers and body of a replacement answer.
        large: whether files are kept elsewhere, behind a redirect, as the hub keeps large ones.
        asked: path of the URL and the headers of each request.
    """

    repo: str = "org/repo"
    commit: str = COMMIT
    files: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None
    overrides: dict[str, tuple[int, Mapping[str, str], bytes]] = field(default_factory=dict)
    large: bool = False
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def path(self, name: str) -> str:
        return f"/{self.repo}/resolve/{self.commit}/{name}"

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        if path in self.overrides:
            return self.overrides[path]
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return 401, {}, b"Invalid credentials"
        for name, data in self.files.items():
            digest = hashlib.sha256(data).hexdigest()
            if path == f"/cdn/{digest}":
                return 200, {}, data
            if path == self.path(name):
                told = {"x-repo-commit": self.commit}
                if not self.large:
                    return 200, told, data
                return 302, told | {"x-linked-etag": f'"{digest}"', "location": f"/cdn/{digest}"}, b""
        return 404, {"x-error-code": "EntryNotFound"}, b"Entry not found"


@contextmanager
def hub_server(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve the hub on the loopback interface while the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            hub.asked.append((self.path, headers))
            status, told, body = hub.answer(self.path, headers)
            with suppress(ConnectionError):
                self.send_response(status)
                length = {} if "transfer-encoding" in told else {"content-length": str(len(body))}
                for name, value in (length | dict(told)).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Suppress the log, to keep stderr for the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

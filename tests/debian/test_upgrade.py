"""The nginx configuration does not forward Upgrade: the server behind it sees one request as one."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support.nginx import running_nginx
from tests.support.server import until


class _Upstream(BaseHTTPRequestHandler):
    """Handler that answers with the request head that it received."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = str(self.headers).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Upstream) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        with running_nginx(tmp_path, [upstream.server_port] * 2) as url:
            until(lambda: _listens(url), 30)
            yield url
        upstream.shutdown()


def _listens(url: str) -> bool:
    try:
        return httpx.post(url, content=b"").is_success
    except httpx.ConnectError:
        return False


def test_no_upgrade_is_passed_on(url: str) -> None:
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMA"}
    for path in ("/v1/completions", "/admin/tenants"):
        seen = httpx.post(url + path, content=b"{}", headers=headers).text.lower()
        assert "host: " in seen
        assert "upgrade" not in seen

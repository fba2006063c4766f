"""HTTP proxy that forwards every request to one server and records the URLs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_OF_ONE_HOP = frozenset({"connection", "transfer-encoding", "content-length"})


@dataclass
class HttpProxy:
    """Running proxy.

    Attributes:
        url: its address.
        seen: URL of each request.
    """

    url: str = ""
    seen: list[str] = field(default_factory=list)


@contextmanager
def http_proxy(target: str) -> Iterator[HttpProxy]:
    """Run a proxy that answers every request, of any host, with the answer of the server at ``target``."""
    proxy = HttpProxy()

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            proxy.seen.append(self.path)
            asked = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            server = HTTPConnection(urlsplit(target).netloc)
            path = f"{asked.path}?{asked.query}" if asked.query else asked.path
            server.request(self.command, path, body, dict(self.headers))
            answer = server.getresponse()
            content = answer.read()
            server.close()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = forward  # noqa: N815 - the names http.server looks for

        def log_message(self, *args: object) -> None:
            """Suppress the log, to keep stderr for the tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield proxy
        server.shutdown()
        thread.join()

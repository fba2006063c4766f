"""Loopback servers for the S3 tests: moto's, a scripted one, and a proxy that cuts connections."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.core.responses import ActionResult
from moto.s3.models import FakeMultipart
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's S3 server and yield its URL.

    boto3 finds matching credentials, and no proxy or profile of the machine.
    """
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        fake_credentials(patch)
        _true_dates(patch)
        yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


def _true_dates(patch: pytest.MonkeyPatch) -> None:
    """Patch moto's date of multipart uploads, 2010, so that a sweep of old uploads spares running ones."""
    begin, serialized = FakeMultipart.__init__, S3Response.serialized

    def begin_now(multipart: FakeMultipart, *args: Any, **kwargs: Any) -> None:
        begin(multipart, *args, **kwargs)
        multipart.initiated = datetime.now(UTC).isoformat()

    def dated(response: S3Response, action: ActionResult) -> Any:
        if response.data.get("Action") == "ListMultipartUploads":
            under_way = response.backend.list_multipart_uploads(response.bucket_name)
            action.result["Uploads"] = [
                entry | {"Initiated": under_way[entry["UploadId"]].initiated}
                for entry in action.result["Uploads"]
                if entry["UploadId"] in under_way
            ]
        return serialized(response, action)

    patch.setattr(FakeMultipart, "__init__", begin_now)
    patch.setattr(S3Response, "serialized", dated)


def fake_credentials(patch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_ACCESS_KEY_ID", "tests-access-key")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "tests-secret-key")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_CONFIG_FILE", "/dev/null")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("NO_PROXY", "127.0.0.1,localhost")
    patch.setenv("no_proxy", "127.0.0.1,localhost")


def s3_client(endpoint: str) -> Any:
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")


def write_blob(path: Path, data: bytes) -> str:
    """Write a file and return its digest."""
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


@dataclass
class Script:
    """Scripted answers in order, the last one repeated; requests are recorded.

    Attributes:
        stall: answer nothing at all until the server ends, or ``over`` is set.
    """

    answers: list[tuple[int, bytes]] = field(default_factory=list)
    stall: bool = False
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def scripted_server(script: Script) -> Iterator[Script]:
    """Run an HTTP server that answers as the script says."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            script.asked.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
            if script.stall:
                script.over.wait()
                return
            status, body = script.answers[min(len(script.asked), len(script.answers)) - 1]
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - the names http.server looks for

        def log_message(self, *args: object) -> None:
            """Suppress the log, to keep stderr for the tests."""

    with _running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        script.url = f"http://127.0.0.1:{port}"
        yield script
        script.over.set()


@contextmanager
def _running(server: ThreadingHTTPServer) -> Iterator[int]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


class CuttingProxy:
    """TCP proxy that cuts a connection after a number of bytes in one direction.

    Attributes:
        up, down: bytes that a connection may carry to and from the server; None: any number.
        cuts: number of connections to cut; None: all.
        stall: the first connection to cut stalls instead, and all others with it, in both directions.
        carried: bytes that all connections have carried, by direction.
        limited: event that is set once a connection was cut or stalled.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self.up: int | None = None
        self.down: int | None = None
        self.cuts: int | None = None
        self.stall = False
        self.carried = {"up": 0, "down": 0}
        self.limited = threading.Event()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> "CuttingProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        # close() alone does not wake a thread that is in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    @property
    def _stalled(self) -> bool:
        return self.stall and self.limited.is_set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            ends = [client, server]
            for source, sink, way in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=(source, sink, way, ends), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str, ends: list[socket.socket]) -> None:
        carried = 0
        with suppress(OSError):
            while data := source.recv(65536):
                carried += len(data)
                limit = getattr(self, way)
                if limit is not None and carried > limit and self.cuts != 0:
                    if self.cuts is not None:
                        self.cuts -= 1
                    self.limited.set()
                    break
                if self._stalled:
                    break
                sink.sendall(data)
                self.carried[way] += len(data)
        if self._stalled:
            self._over.wait()  # a silent network does not tell that an end has closed
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

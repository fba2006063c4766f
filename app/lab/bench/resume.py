"""Workload ``resume``: bytes sent twice by an upload that is killed repeatedly.

``tenora adapters push`` runs as a separate process against a separate server. It is killed with SIGKILL at random
points of the data, restarted each time, and finally left to finish. Proxies count the bytes that the client sends to
the server and, with S3, to the bucket. At the end the store's bytes are hashed.

With ``--s3`` the store is moto's S3 server, which is part of the development environment.
"""

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.identity import content_digest
from adapters.stores import open_store
from adapters.stores.files import file_digest
from app.lab.bench.engineless import MAX_RANK, prepare, serving, set_up
from app.settings import EngineSettings, Settings

_BUCKET = "tenora-bench"
_MIB = 2**20
_CHUNK_BYTES = 64 * 1024
_ADMIN_TIMEOUT_S = 60
_PUSH_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of the benchmark.

    Attributes:
        adapter_bytes: size of both files.
        sent_bytes: bytes sent to the destination of the parts, headers included.
        sent_twice: excess of ``sent_bytes`` as a fraction of ``adapter_bytes``, headers included.
        server_bytes: bytes between client and server in both directions.
        server_part: ``server_bytes`` as a fraction of ``adapter_bytes``.
        digest_matches: True if the stored bytes have the files' digests and the version reports them.
        seconds: duration of all uploads together.
        kills: bytes sent at each kill of the client.
    """

    adapter_bytes: int
    sent_bytes: int
    sent_twice: float
    server_bytes: int
    server_part: float
    digest_matches: bool
    seconds: float
    kills: tuple[int, ...]


class CountingProxy:
    """TCP proxy that counts the bytes in both directions. Use it as a context manager."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.up, self.down = 0, 0
        self._changed = threading.Condition()

    def __enter__(self) -> "CountingProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # close() alone does not wake a thread blocked in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def wait_for(self, up: int, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until ``up`` bytes were sent (True) or the process ended (False)."""
        while process.poll() is None:
            with self._changed:
                if self._changed.wait_for(lambda: self.up >= up, timeout=0.1):
                    return True
        return False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            down = threading.Thread(target=self._carry, args=(server, client, False), daemon=True)
            down.start()
            self._carry(client, server, True)
            down.join()

    def _carry(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                with self._changed:
                    if up:
                        self.up += len(data)
                    else:
                        self.down += len(data)
                    self._changed.notify_all()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print JSON."""
    parser = argparse.ArgumentParser(prog="tenora server bench resume", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="Size of the adapter in MB, from 11 to 1300")
    parser.add_argument("--kills", type=int, default=10, help="Number of times that the client is killed")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the points at which it is killed")
    parser.add_argument("--s3", action="store_true", help="Send parts straight to an S3 server, by presigned URLs")
    parser.add_argument("--home", type=Path, help="Parent folder of the temporary HOME; default: the system's")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tenora-resume-", dir=options.home) as folder:
        outcome = run(
            Path(folder), size=options.megabytes * 10**6, kills=options.kills, seed=options.seed, s3=options.s3
        )
    sys.stdout.write(json.dumps(asdict(outcome), indent=2) + "\n")


def run(folder: Path, *, size: int, kills: int, seed: int, s3: bool) -> Outcome:
    """Push an adapter of about ``size`` bytes to a server below ``folder``, killing the client ``kills`` times."""
    base, adapter = prepare(folder, size)
    home, engine = folder / "home", EngineSettings(max_lora_rank=MAX_RANK)
    if not s3:
        return _measure(adapter, Settings(home=home, base_model=str(base), engine=engine), None, kills, seed)
    with _s3_server() as endpoint, CountingProxy(endpoint) as bucket:
        settings = Settings(
            home=home,
            base_model=str(base),
            engine=engine,
            store_url=f"s3://{_BUCKET}/bench",
            s3_region="us-east-1",
            s3_endpoint_url=endpoint,
            s3_public_endpoint_url=bucket.url,
        )
        return _measure(adapter, settings, bucket, kills, seed)


def _measure(adapter: Path, settings: Settings, bucket: CountingProxy | None, kills: int, seed: int) -> Outcome:
    key = asyncio.run(set_up(settings))
    size = sum((adapter / name).stat().st_size for name in (CONFIG_NAME, WEIGHTS_NAME))
    points = sorted(random.Random(seed).sample(range(1, size), kills))  # noqa: S311 - repeatable, and no secret
    with serving(settings) as (url, _), CountingProxy(url) as server:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=_ADMIN_TIMEOUT_S, trust_env=False) as admin:
            admin.post("/admin/tenants", json={"slug": "bench"}).raise_for_status()
        environment = {**os.environ, "TENORA_URL": server.url, "TENORA_KEY": key}
        counted, started = bucket or server, time.perf_counter()
        done = [counted.up for point in points if _killed(_push(adapter, environment), counted, point)]
        version = _finished(_push(adapter, environment))
        seconds = time.perf_counter() - started
    traffic = server.up + server.down
    return Outcome(
        adapter_bytes=size,
        sent_bytes=counted.up,
        sent_twice=round(counted.up / size - 1, 4),
        server_bytes=traffic,
        server_part=round(traffic / size, 5),
        digest_matches=_matches(adapter, settings, version),
        seconds=round(seconds, 1),
        kills=tuple(done),
    )


def _push(adapter: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tenora_client", "adapters", "push", str(adapter), "--adapter", "large"]
    command += ["--tenant", "bench", "--json"]
    return subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _killed(client: "subprocess.Popen[bytes]", counted: CountingProxy, point: int) -> bool:
    with client:
        there = counted.wait_for(point, client)
        client.kill()
        return there


def _finished(client: "subprocess.Popen[bytes]") -> dict[str, Any]:
    printed, _ = client.communicate(timeout=_PUSH_TIMEOUT_S)
    if client.returncode:
        raise RuntimeError(f"tenora adapters push ended with exit status {client.returncode}.")
    version: dict[str, Any] = json.loads(printed)
    return version


def _matches(adapter: Path, settings: Settings, version: Mapping[str, Any]) -> bool:
    digests = [file_digest(adapter / name) for name in (CONFIG_NAME, WEIGHTS_NAME)]
    if version["digest"] != f"sha256:{content_digest(*digests)}":
        return False
    url = settings.store_url or (settings.home.resolve() / "blobs").as_uri()
    store = open_store(url, endpoint_url=settings.s3_endpoint_url, region=settings.s3_region)
    for digest in digests:
        copy = adapter / f"{digest}.copy"
        store.fetch(digest, copy)
        actual = file_digest(copy)
        copy.unlink()
        if actual != digest:
            return False
    return True


@contextmanager
def _s3_server() -> Iterator[str]:
    """Run moto's server in a separate process with an empty bucket, and set matching credentials for boto3."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"}
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve_s3, args=(sender,), daemon=True)
    process.start()
    try:
        endpoint: str = receiver.recv()
        httpx.put(f"{endpoint}/{_BUCKET}", trust_env=False).raise_for_status()
        yield endpoint
    finally:
        process.terminate()
        process.join()


def _serve_s3(sender: Any) -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    sender.send("http://{}:{}".format(*server.get_host_and_port()))
    threading.Event().wait()


if __name__ == "__main__":
    main()

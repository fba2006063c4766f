"""Resumable upload in parts. A part that arrived is never sent again, even after this process was killed.

The client keeps no state. It finds the upload with the same files in the server's list of open uploads, also from
another process or machine.
"""

from __future__ import annotations

import base64
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import httpx

from tenora_client.errors import Refused
from tenora_client.transport import Api

#: Maximum parts in flight, and their maximum share of the file's bytes. A killed process loses these parts.
_LANES = 4
_AT_RISK = 1 / 200

_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
_POLL_S = 1.0
_ROUNDS = 3
_CHUNK_BYTES = 64 * 1024
_TIMEOUT = httpx.Timeout(connect=10, read=60, write=60, pool=60)
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """File to upload, with its size in bytes and its SHA-256 (hex) at the time it was read."""

    path: Path
    size: int
    sha256: str

    @classmethod
    def read(cls, path: Path, on_chunk: Callable[[int], None]) -> Source:
        """Hash a file.

        Args:
            on_chunk: callback with the number of bytes of each chunk.

        Raises:
            OSError: the file cannot be read.
        """
        whole, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                whole.update(chunk)
                size += len(chunk)
                on_chunk(len(chunk))
        return cls(path, size, whole.hexdigest())


class Sender:
    """Upload of one adapter's files.

    Args:
        path: path of the adapter's uploads.
        through_server: send all parts to the server, even those that could go straight to its store.
        sent: callback with the number of bytes that arrived. It is negative for a failed part.

    Raises (every method):
        Refused, httpx.TransportError: all retries failed.
        OSError: a file is no longer readable.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        files: Mapping[str, Source],
        *,
        through_server: bool = False,
        sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._api, self._path, self._files = api, path, files
        self._through_server, self._lock, self._on_sent = through_server, threading.Lock(), sent
        self._arrived = 0

    def resume(self, options: Mapping[str, Any], part_bytes: int | None) -> dict[str, Any] | None:
        """Return the open upload with these files and options, or None."""
        own_files = {name: (file.size, file.sha256) for name, file in self._files.items()}
        for upload in self._api.call("GET", self._path)["data"]:
            files = {name: (file["size"], file["sha256"]) for name, file in upload["files"].items()}
            sizes = {file["part_bytes"] for file in upload["files"].values()}
            if files == own_files and upload["options"] == options and part_bytes in (None, *sizes):
                return self._show(upload["id"])
        return None

    def begin(self, options: Mapping[str, Any], part_bytes: int | None) -> dict[str, Any]:
        """Start a new upload."""
        files = {name: {"size": file.size, "sha256": file.sha256} for name, file in self._files.items()}
        body = {"files": files, "options": options} | ({"part_bytes": part_bytes} if part_bytes else {})
        upload: dict[str, Any] = self._api.call("POST", self._path, body)
        return upload

    def publish(
        self,
        options: Mapping[str, Any],
        part_bytes: int | None,
        on_resume: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Resume the open upload with these files and options, or start one, and send it.

        Args:
            on_resume: callback with the upload that is resumed.

        Returns:
            The version, and the upload that became it.
        """
        upload = self.resume(options, part_bytes)
        if upload is not None:
            on_resume(upload)
            try:
                return self.send(upload), upload
            except Refused as refused:
                # The upload ended meanwhile: it expired or was aborted.
                if refused.status not in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):
                    raise
        upload = self.begin(options, part_bytes)
        return self.send(upload), upload

    def send(self, upload: dict[str, Any]) -> dict[str, Any]:
        """Send the missing parts, finish the upload and return the version."""
        for left in reversed(range(_ROUNDS)):
            self._report(bytes_there(upload) - self._arrived)
            self._send_missing(upload)
            try:
                version: dict[str, Any] = persistent(partial(self._finish, upload["id"]))
            except Refused as refused:
                if refused.status != httpx.codes.CONFLICT or not left:
                    raise
                # Retry if the server lost parts, which it lists. Give up if the upload is closed.
                upload = self._show(upload["id"])
                if upload["state"] != "open":
                    raise
            else:
                return version
        raise AssertionError("The last round must return or raise.")

    def _finish(self, upload: str) -> Any:
        while True:
            try:
                return self._api.call("POST", f"{self._path}/{upload}/finish")
            except Refused as refused:
                if refused.status != httpx.codes.CONFLICT or self._show(upload)["state"] != "finishing":
                    raise
            # Another caller, or the server itself after a client disconnected, is finishing this upload.
            time.sleep(_POLL_S)

    def _show(self, upload: str) -> dict[str, Any]:
        shown: dict[str, Any] = persistent(lambda: self._api.call("GET", f"{self._path}/{upload}"))
        return shown

    def _send_missing(self, upload: Mapping[str, Any]) -> None:
        if upload["state"] != "open":
            return
        jobs = [
            (name, number)
            for name, file in upload["files"].items()
            for number in sorted(set(range(1, file["parts"] + 1)) - set(file["received"]))
        ]
        # Use a separate client: the store must not receive the server's key.
        with httpx.Client(timeout=_TIMEOUT, trust_env=self._api.trusts_proxies) as store:
            _run_in_lanes(
                [partial(self._send_part, upload, name, number, store) for name, number in jobs], lanes(upload)
            )

    def _send_part(self, upload: Mapping[str, Any], name: str, number: int, store: httpx.Client) -> None:
        file = upload["files"][name]
        data = _read_part(self._files[name].path, file["part_bytes"], number)
        digest = hashlib.sha256(data).digest()
        base = f"{self._path}/{upload['id']}/files/{name}"

        def straight() -> None:
            parts = {"parts": [{"number": number, "sha256": digest.hex()}]}
            target = self._api.call("POST", f"{base}/urls", parts)["urls"][0]
            with self._counted(data) as chunks:
                answer = store.put(target["url"], content=chunks, headers=target["headers"])
                if answer.is_error:
                    raise _StoreRefused(answer.status_code, f"The store refused part {number} of {name}.")

        def through() -> None:
            headers = {
                "content-digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
                "content-length": str(len(data)),
            }
            with self._counted(data) as chunks:
                self._api.put(f"{base}/parts/{number}", chunks, headers)

        persistent(straight if file["direct"] and not self._through_server else through)

    def _counted(self, data: bytes) -> _Counted:
        return _Counted(data, self._report)

    def _report(self, size: int) -> None:
        with self._lock:
            self._arrived += size
            self._on_sent(size)


class _StoreRefused(Refused):
    """The store refused a part. Every status is retried with a new URL, since the URL may have expired."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, {"error": {"message": message}}, None)


class _Counted:
    """Request body in chunks that reports its progress, and retracts it if the request fails."""

    def __init__(self, data: bytes, report: Callable[[int], None]) -> None:
        self._data, self._report, self._sent = memoryview(data), report, 0

    def __enter__(self) -> Iterator[bytes]:
        return self._chunks()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._report(-self._sent)

    def _chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), _CHUNK_BYTES):
            chunk = bytes(self._data[start : start + _CHUNK_BYTES])
            yield chunk
            self._sent += len(chunk)
            self._report(len(chunk))


def _run_in_lanes(jobs: Sequence[Callable[[], None]], number: int) -> None:
    """Run jobs in threads until all are done or one fails, and raise its error once no job runs any more.

    An interrupt does not wait for the running jobs: a stalled connection may hold them for minutes. The threads are
    daemons, so the process can end meanwhile.
    """
    waiting = iter(jobs)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    lock, stopped = threading.Lock(), threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                job = next(waiting, None)
            if job is None:
                return
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                stopped.set()
                ended.put(error)
            else:
                ended.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(number, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        error = next((error for error in (ended.get() for _ in jobs) if error is not None), None)
    except BaseException:
        stopped.set()
        raise
    for thread in threads:
        thread.join()
    if error is not None:
        raise error


def lanes(upload: Mapping[str, Any]) -> int:
    """Number of parts to send in parallel, limited so that the bytes in flight stay a small share of the upload."""
    size = sum(file["size"] for file in upload["files"].values())
    part_bytes = max(file["part_bytes"] for file in upload["files"].values())
    return max(1, min(_LANES, int(size * _AT_RISK / part_bytes)))


def bytes_there(upload: Mapping[str, Any]) -> int:
    """Number of bytes that have arrived."""
    return sum(
        min(file["part_bytes"], file["size"] - (number - 1) * file["part_bytes"])
        for file in upload["files"].values()
        for number in file["received"]
    )


def persistent(call: Callable[[], T]) -> T:
    """Retry with growing pauses while the server or the connection is at fault.

    Raises:
        Refused, httpx.TransportError: the last attempt failed.
    """
    for pause_s in _PAUSES_S:
        try:
            return call()
        except Refused as refused:
            if refused.status not in _AGAIN and not isinstance(refused, _StoreRefused):
                raise
        except httpx.UnsupportedProtocol:
            raise
        except httpx.TransportError:
            pass
        # Jitter: keep lanes and clients from retrying in step.
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
    return call()


def _read_part(path: Path, part_bytes: int, number: int) -> bytes:
    with path.open("rb") as file:
        file.seek((number - 1) * part_bytes)
        return file.read(part_bytes)

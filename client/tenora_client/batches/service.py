"""Backends that run batches: a server, or the engine of this machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from tenora_client.answers import read
from tenora_client.atomic_files import new_file
from tenora_client.batches.requests import BATCHES_PATH
from tenora_client.errors import Refused
from tenora_client.exporting import ExportedFile
from tenora_client.paths import path_of
from tenora_client.progress import OnProgress
from tenora_client.sending import FILES_PATH, FileToSend, upload
from tenora_client.transport import Api
from tenora_client.types import Batch, File

#: Seconds without an answer after which a server counts as gone. A restart with a large base takes minutes.
_PATIENCE_S = 900.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})

T = TypeVar("T")


class BatchService(Protocol):
    """Files and batches of one tenant.

    Attributes:
        goes_on: whether a batch runs on when this process ends.

    Raises (every method):
        Refused: the request is not allowed.
        httpx.TransportError: the server does not answer.
    """

    goes_on: bool

    def upload(self, path: Path, filename: str, on_progress: OnProgress) -> File:
        """Store a file with requests."""

    def delete(self, file_id: str) -> None:
        """Delete a file."""

    def create(self, body: Mapping[str, Any]) -> Batch:
        """Create a batch."""

    def find(self, file_id: str) -> Batch | None:
        """Return the batch that reads a file, None if there is none."""

    def show(self, batch_id: str) -> Batch:
        """Return a batch."""

    def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch."""

    def download(self, file_id: str, path: Path) -> None:
        """Write a file's content to a path. It appears once it is complete."""


@dataclass(frozen=True)
class Backend:
    """Backend that runs batches.

    Attributes:
        place: name of the server, or of the folder with this machine's data. A run can only go on at the same place.
        service: opens it.
    """

    place: str
    service: AbstractContextManager[BatchService]


def fetch_results(service: BatchService, batch: Batch, folder: Path) -> list[Path]:
    """Download the output and the error file of a batch, as far as it has them, into a folder."""
    ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
    for file_id in ids:
        service.download(file_id, folder / file_id)
    return [folder / file_id for file_id in ids]


class ServerBatches:
    """Files and batches of the key's tenant on a server.

    Calls that can be repeated safely are repeated while the server restarts or the network is down.

    Args:
        on_loss: callback with a sentence, once for each lost connection.
    """

    goes_on = True

    def __init__(self, api: Api, on_loss: Callable[[str], None]) -> None:
        self._api, self._on_loss = api, on_loss

    def upload(self, path: Path, filename: str, on_progress: OnProgress) -> File:
        return read(File, upload(self._api, FileToSend(path, filename=filename), on_progress))

    def delete(self, file_id: str) -> None:
        self._api.call("DELETE", f"{FILES_PATH}{path_of(file_id)}")

    def create(self, body: Mapping[str, Any]) -> Batch:
        # One batch for one file, also if the answer is lost on its way.
        headers = {"idempotency-key": f"tenora-batch-{body['input_file_id']}"}
        return read(Batch, self._patiently(lambda: self._api.call("POST", BATCHES_PATH, body, headers)))

    def find(self, file_id: str) -> Batch | None:
        for page in self._api.pages_after(BATCHES_PATH):
            for row in page:
                if row.get("input_file_id") == file_id:
                    return read(Batch, row)
        return None

    def show(self, batch_id: str) -> Batch:
        return read(Batch, self._patiently(lambda: self._api.call("GET", f"{BATCHES_PATH}{path_of(batch_id)}")))

    def cancel(self, batch_id: str) -> Batch:
        return read(Batch, self._api.call("POST", f"{BATCHES_PATH}{path_of(batch_id, 'cancel')}"))

    def download(self, file_id: str, path: Path) -> None:
        """Download a file and check its digest.

        Raises:
            DamagedDownload: the content does not match the digest.
        """
        self._patiently(lambda: self._download(f"{FILES_PATH}{path_of(file_id, 'content')}", path))

    def _download(self, url_path: str, path: Path) -> None:
        with new_file(path) as part, ExportedFile(part.parent, part.name, path.name) as file:
            with self._api.download(url_path) as download:
                for chunk in download.chunks:
                    file.write(chunk)
            file.checked(download.headers)

    def _patiently(self, call: Callable[[], T]) -> T:
        deadline, pause_s, told = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S, False
        while True:
            try:
                return call()
            except Refused as refused:
                if refused.status not in _AGAIN or time.monotonic() >= deadline:
                    raise
                problem = f"The server cannot answer now ({refused.status})."
            except httpx.UnsupportedProtocol:
                raise
            except httpx.TransportError as error:
                if time.monotonic() >= deadline:
                    raise
                problem = f"Lost the connection ({type(error).__name__})."
            if not told:
                self._on_loss(f"{problem} Trying again.")
                told = True
            # Jitter: keep clients from retrying in step.
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

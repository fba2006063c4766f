"""Upload of a file for batches, read in chunks while it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tenora_client.configuration import Access
from tenora_client.progress import OnProgress, Progress
from tenora_client.transport import Api

FILES_PATH = "/v1/files"


@dataclass(frozen=True)
class FileToSend:
    """File to upload.

    Attributes:
        filename: name that the server shows; None: that of the path.
        expires_in_s: seconds until the server deletes it; None: the server's choice.
    """

    path: Path
    purpose: str = "batch"
    filename: str | None = None
    expires_in_s: int | None = None


def send_file(access: Access, job: FileToSend, report: OnProgress) -> Any:
    """Upload a file, and return the JSON of the answer.

    Raises:
        Refused: the server refused the file.
        httpx.TransportError: the server did not answer.
        OSError: the file cannot be read.
    """
    with Api(access.url, access.key) as api:
        return upload(api, job, report)


def upload(api: Api, job: FileToSend, report: OnProgress) -> Any:
    """Upload a file over an open connection, as :func:`send_file` does."""
    fields = {"purpose": job.purpose}
    if job.expires_in_s is not None:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(job.expires_in_s)}
    with job.path.open("rb") as file:
        counted = _Counted(file, job.path.stat().st_size, report)
        return api.upload_file(FILES_PATH, fields, job.filename or job.path.name, counted)


class _Counted:
    """Binary file that reports how much of it was read. The HTTP client takes its size from ``fileno``."""

    def __init__(self, file: BinaryIO, size: int, report: OnProgress) -> None:
        self._file, self._size, self._report, self._done = file, size, report, 0

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self._done += len(chunk)
        self._report(Progress("sending", min(self._done, self._size), self._size))
        return chunk

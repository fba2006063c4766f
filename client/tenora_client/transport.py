"""HTTP client of Tenora's API, as the command line and resumable uploads use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from tenora_client._sync.connection import Connection, Download
from tenora_client.answers import FeedEvent, result
from tenora_client.errors import Refused
from tenora_client.paths import adapters_path, path_of

__all__ = ["Api", "Download", "FeedEvent", "Refused", "adapters_path", "path_of"]


class Api(Connection):
    """Connection that also sends files."""

    def __enter__(self) -> Api:
        return self

    def upload(self, path: str, files: Mapping[str, BinaryIO]) -> Any:
        """Send files as multipart. Each file is read in chunks while it is sent."""
        parts = {name: (name, file, "application/octet-stream") for name, file in files.items()}
        return result(self._http.post(path, files=parts))

    def upload_file(self, path: str, fields: Mapping[str, str], name: str, file: Any) -> Any:
        """Send form fields and a file, which is an object with ``read`` and ``fileno``."""
        return result(self._http.post(path, data=dict(fields), files={"file": (name, file, "application/jsonl")}))

    def put(self, path: str, content: Iterable[bytes], headers: Mapping[str, str]) -> None:
        """Send a body. The headers give its length."""
        result(self._http.put(path, content=content, headers=dict(headers)))

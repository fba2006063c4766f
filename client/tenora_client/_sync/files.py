# Generated from _async/files.py by `make client-code`. Change that file instead.
"""Namespace ``files``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tenora_client._sync.resource import Resource
from tenora_client.atomic_files import new_file
from tenora_client.exporting import ExportedFile
from tenora_client.paths import path_of
from tenora_client.progress import OnProgress
from tenora_client.sending import FILES_PATH, FileToSend, send_file
from tenora_client.types import DeletedFile, File


class Files(Resource):
    """Files of the key's tenant: inputs of batches, and what batches wrote. The key needs the scope ``batch``.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

    def list(self, *, purpose: str | None = None) -> Iterator[File]:
        """Yield the files, newest first.

        Args:
            purpose: only ``batch`` or ``batch_output``.
        """
        return self._session.items(File, FILES_PATH, {"purpose": purpose}, by_id=True)

    def show(self, file_id: str) -> File:
        """Fetch the facts of a file."""
        return self._session.get(File, _path(file_id))

    def upload(
        self,
        path: str | os.PathLike[str],
        *,
        filename: str | None = None,
        expires_in_s: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> File:
        """Upload the input of a batch: JSON lines in OpenAI's form.

        Args:
            filename: name that the server shows; None: that of the path.
            expires_in_s: seconds until the server deletes the file; None: the server's choice.
            on_progress: callback for progress.

        Raises:
            OSError: the file cannot be read.
        """
        job = FileToSend(Path(path), filename=filename, expires_in_s=expires_in_s)
        return self._session.typed(File, self._session.run(partial(send_file, self._session.access, job), on_progress))

    def download(self, file_id: str, path: str | os.PathLike[str]) -> Path:
        """Download a file. It appears under the path, in place of an earlier one, once its digest is checked.

        Raises:
            DamagedDownload: the content does not match its digest.
            OSError: the file cannot be written. Nothing is left behind.
        """
        target = Path(path)
        with new_file(target) as part, ExportedFile(part.parent, part.name, target.name) as file:
            with self._session.download(_path(file_id, "content")) as download:
                for chunk in download.chunks:
                    file.write(chunk)
            file.checked(download.headers)
        return target

    def delete(self, file_id: str) -> DeletedFile:
        """Delete a file. A file that an unfinished batch reads cannot be deleted."""
        return self._session.change(DeletedFile, "DELETE", _path(file_id))


def _path(file_id: str, *segments: str) -> str:
    return path_of("v1", "files", file_id, *segments)

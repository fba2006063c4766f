# Generated from _async/batches.py by `make client-code`. Change that file instead.
"""Namespace ``batches``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from tenora_client._sync.resource import Resource
from tenora_client.batches.lines import CHAT
from tenora_client.batches.requests import BATCHES_PATH, FINAL_STATES, batch_body
from tenora_client.errors import TenoraError
from tenora_client.paths import path_of
from tenora_client.types import Batch
from tenora_client.waiting import LONGEST_POLL_S, POLL_S, not_ended


class Batches(Resource):
    """Batches of the key's tenant. The key needs the scope ``batch``.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

    def create(
        self,
        input_file_id: str,
        *,
        endpoint: str = CHAT,
        completion_window: str = "24h",
        model: str | None = None,
        width: int | None = None,
        metadata: Mapping[str, str] | None = None,
        output_expires_in_s: int | None = None,
    ) -> Batch:
        """Create a batch from an uploaded file.

        Args:
            endpoint: route of all lines.
            completion_window: time after which lines that have not run are given up, ``10m`` to ``7d``.
            model: model of lines that name none.
            width: most lines that run at once.
            output_expires_in_s: seconds after which the output is deleted; None: the server's choice.
        """
        body = batch_body(input_file_id, endpoint, completion_window, model, width, metadata, output_expires_in_s)
        return self._session.change(Batch, "POST", BATCHES_PATH, body)

    def list(self) -> Iterator[Batch]:
        """Yield the batches, newest first."""
        return self._session.items(Batch, BATCHES_PATH, by_id=True)

    def show(self, batch_id: str) -> Batch:
        """Fetch a batch."""
        return self._session.get(Batch, path_of("v1", "batches", batch_id))

    def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch. Lines that are done stay and are charged."""
        return self._session.change(Batch, "POST", path_of("v1", "batches", batch_id, "cancel"))

    def wait(
        self, batch_id: str, *, timeout_s: float | None = None, on_change: Callable[[Batch], None] | None = None
    ) -> Batch:
        """Wait for the end of a batch.

        Args:
            timeout_s: seconds to wait; None: until its end.
            on_change: callback with the batch at each look.

        Returns:
            The batch: completed, failed, expired or cancelled.

        Raises:
            TenoraError: the batch takes longer than ``timeout_s`` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = POLL_S
        while True:
            batch = self.show(batch_id)
            if on_change is not None:
                on_change(batch)
            if batch.status in FINAL_STATES:
                return batch
            if deadline is not None and time.monotonic() >= deadline:
                raise TenoraError(not_ended(batch, timeout_s or 0.0))
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)

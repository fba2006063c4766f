"""Requests about batches, and the states of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BATCHES_PATH = "/v1/batches"
#: States in which a batch stays.
FINAL_STATES = frozenset({"completed", "failed", "expired", "cancelled"})


def batch_body(
    input_file_id: str,
    endpoint: str,
    completion_window: str,
    model: str | None,
    width: int | None,
    metadata: Mapping[str, str] | None,
    output_expires_in_s: int | None = None,
) -> dict[str, Any]:
    """Build the body that creates a batch. What is None is left to the server."""
    body: dict[str, Any] = {
        "input_file_id": input_file_id,
        "endpoint": endpoint,
        "completion_window": completion_window,
    }
    if metadata:
        body["metadata"] = dict(metadata)
    if output_expires_in_s is not None:
        body["output_expires_after"] = {"anchor": "created_at", "seconds": output_expires_in_s}
    options = {name: value for name, value in (("model", model), ("width", width)) if value is not None}
    if options:
        body["tenora"] = options
    return body

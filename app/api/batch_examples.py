"""Examples of batches in the OpenAPI document, by the name of their schema."""

from typing import Any

_ID = "batch_5f0c7b1e9a3d2846"
_FILE = "file-0776b0fc39ccec598d4be7518ddec320"
_TIMES = {
    "created_at": 1_772_357_400,
    "expires_at": 1_772_443_800,
    "in_progress_at": 1_772_357_410,
    **dict.fromkeys(
        ("finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at"), None
    ),
}
_FIELDS: dict[str, Any] = {
    "id": _ID,
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "input_file_id": _FILE,
    "output_file_id": None,
    "error_file_id": None,
    "completion_window": "24h",
    "status": "in_progress",
    **_TIMES,
    "request_counts": {"total": 2000, "completed": 640, "failed": 1},
    "usage": {
        "input_tokens": 38_400,
        "input_tokens_details": {"cached_tokens": 12_800},
        "output_tokens": 20_480,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 58_880,
    },
    "tenora": {
        "model": "pricing",
        "width": None,
        "quote": {
            "lines": 2000,
            "prompt_tokens": 120_000,
            "most_output_tokens": 128_000,
            "most_cost": "0.0474",
            "expected_s": 125.0,
        },
        "cost": "0.008628",
        "blocked": None,
        "reason": None,
        "rate": 16.025,
        "expected_at": 1_772_357_535,
        "warnings": [],
    },
}
_BATCH = {**_FIELDS, "model": "pricing", "errors": None, "metadata": {"table": "prices of spring"}}
_PAGE = {"object": "list", "first_id": _ID, "last_id": _ID, "has_more": False}

BODIES: dict[str, Any] = {
    "BatchCreate": {
        "input_file_id": _FILE,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"table": "prices of spring"},
        "tenora": {"model": "pricing"},
    }
}
ANSWERS: dict[str, Any] = {
    "Batch": _BATCH,
    "BatchList": {**_PAGE, "data": [_BATCH]},
    "PlatformBatchList": {
        **_PAGE,
        "data": [{**_FIELDS, "tenant": "retail", "created_by": "UwxapINILZGwJNLl", "problems": 0}],
    },
}

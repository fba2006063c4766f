"""Examples of answers for the console in the OpenAPI document."""

from typing import Any

_KEY_ID = "UwxapINILZGwJNLl"
_AT = "2026-03-01T09:30:00Z"

#: Component -> example.
ANSWERS: dict[str, Any] = {
    "AuditRow": {
        "id": 7,
        "at": _AT,
        "actor": _KEY_ID,
        "actor_name": "web shop",
        "action": "alias.move",
        "tenant": "retail",
        "subject": "pricing:default",
        "before": {"targets": {"2": 100}},
        "after": {"targets": {"3": 100}},
        "sealed": True,
    },
    "AuditVerification": {
        "intact": True,
        "sealed": 1200,
        "fresh": 2,
        "trimmed": 0,
        "problems": [],
        "problem_count": 0,
    },
    "Request": {
        "id": "5f0c2d9be1a74b5d8c3e6f7a90b1c2d3",
        "at": _AT,
        "tenant": "retail",
        "key": _KEY_ID,
        "key_name": "web shop",
        "adapter": "retail/pricing@3",
        "prompt_tokens": 240,
        "cached_tokens": 105,
        "output_tokens": 80,
        "ttft_s": 0.12,
        "duration_s": 1.9,
        "load_s": None,
        "slot_s": 1.8,
        "finish_reason": "stop",
        "status": 200,
        "cost": "0.000084",
    },
    "UploadRefusal": {
        "adapter": "pricing",
        "at": _AT,
        "key": _KEY_ID,
        "key_name": "web shop",
        "digest": None,
        "reasons": [
            {
                "code": "missing_part",
                "field": "adapter_model.safetensors",
                "found": "no such part",
                "allowed": "one file",
                "message": "The upload has no adapter_model.safetensors. Send both files that PEFT saves.",
                "count": 1,
                "examples": [],
            },
        ],
        "reason_count": 1,
    },
    "UsageSeries": {
        "start": "2026-03-01T09:00:00Z",
        "end": "2026-03-01T10:00:00Z",
        "step": "1h",
        "currency": "USD",
        "data": [
            {
                "start": "2026-03-01T09:00:00Z",
                "requests": 380,
                "failed": 1,
                "prompt_tokens": 91_200,
                "cached_tokens": 40_000,
                "output_tokens": 30_400,
                "cold_loads": 2,
                "load_s": 0.4,
                "slot_s": 512.5,
                "cost": "0.03192",
                "ttft": {"p50": 0.107, "p95": 0.256, "p99": 0.431},
                "duration": {"p50": 1.9, "p95": 3.8, "p99": 4.52},
            },
        ],
    },
}

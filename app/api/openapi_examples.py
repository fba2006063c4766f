"""Examples of the OpenAPI document: one for each body and answer, by the name of its schema."""

from collections.abc import Iterator
from typing import Any

from app.api import batch_examples, console_examples, file_examples, inference_examples
from app.api.openapi_components import SCHEMAS, event_data

_AT = "2026-03-01T09:30:00Z"
_LATER = "2026-03-01T10:00:00Z"
_KEY_ID = "UwxapINILZGwJNLl"
_SHA256 = "0776b0fc39ccec598d4be7518ddec32013512f7a6fef4dbed7b1e0527ac531b4"
_DIGEST = f"sha256:{_SHA256}"
_BASE = {"name": "llama-3.1-8b", "digest": _DIGEST}

_LIMITS = {
    "requests_per_minute": 60,
    **dict.fromkeys(("tokens_per_minute", "concurrent_requests", "tokens_per_request", "tokens_per_day")),
    "tokens_per_month": 50_000_000,
    "cost_per_day": None,
    "cost_per_month": "250.00",
}
_QUOTA = {"adapters": 10, "versions": 100, "bytes": None, "rank": 64, "pinned_slots": 2}
_USED = {"adapters": 1, "versions": 3, "bytes": 407_334, "rank": 8, "pinned_slots": 0}
_TENANT = {
    "slug": "retail",
    "name": "Retail",
    "disabled": False,
    "created_at": _AT,
    "quota": _QUOTA,
    "weight": 1.0,
    "limits": _LIMITS,
}
_KEY = {
    "id": _KEY_ID,
    "tenant": "retail",
    "name": "shop",
    "owner": "web shop",
    "scopes": ["inference"],
    "created_at": _AT,
    "last_used_at": _LATER,
    "expires_at": None,
    "revoked_at": None,
    "limits": _LIMITS,
    "adapters": ["pricing"],
    "addresses": None,
}
_ADAPTER = {
    "name": "pricing",
    "tenant": "retail",
    "created_at": _AT,
    "versions": [3, 2, 1],
    "aliases": {"default": {"3": 100}},
    "limits": _LIMITS,
}
_PROVENANCE = {
    "uploaded_by": _KEY_ID,
    "uploaded_by_name": "web shop",
    "uploaded_at": _AT,
    "uploaded_from": "10.0.0.7",
    "source": {"kind": "upload"},
    "training_run": None,
    "peft_version": "0.19.1",
    "alpha": 16.0,
    "target_modules": ["q_proj", "v_proj"],
    "parameters": 32_768,
    "dtype": "F32",
    "base": _BASE,
}
_MANIFEST = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
_VERSION = {
    "adapter": "pricing",
    "version": 3,
    "name": "pricing@3",
    "state": "ready",
    "state_reason": None,
    "digest": _DIGEST,
    "size_bytes": 135_778,
    "rank": 8,
    "created_at": _AT,
    "created_by": _KEY_ID,
    "aliases": ["default"],
    "pinned": False,
    "manifest": _MANIFEST,
    "provenance": _PROVENANCE,
    "labels": {"stage": "candidate"},
    "card": "Prices of spring.",
    "defaults": {"temperature": 0.2},
    "warnings": [],
}
_SHARED_ADAPTER = {
    "name": "retail/pricing",
    "owner": "retail",
    "adapter": "pricing",
    "shared_at": _AT,
    "versions": [3],
    "aliases": {"default": {"3": 100}},
}
_SHARED_VERSION = {
    "name": "retail/pricing@3",
    "owner": "retail",
    "adapter": "pricing",
    "version": 3,
    "state": "ready",
    "digest": _DIGEST,
    "size_bytes": 135_778,
    "rank": 8,
    "created_at": _AT,
    "aliases": ["default"],
    "labels": {"stage": "candidate"},
    "card": "Prices of spring.",
    "base": _BASE,
}
_SHARE = {"recipient": "logistics", "recipient_exists": None, "created_at": _AT, "created_by": _KEY_ID}
_ALIAS = {"name": "default", "model": "pricing:default", "weights": {"3": 100}, "revision": 4, "updated_at": _AT}
_ALIAS_CHANGE = {
    "revision": 4,
    "at": _AT,
    "actor": _KEY_ID,
    "action": "move",
    "weights": {"3": 100},
    "reason": None,
}
_POLICY = {
    "steps": [{"weight": 5, "seconds": 300}, {"weight": 100, "seconds": 300}],
    "min_requests": 20,
    "max_error_rate": 0.02,
    "max_empty_rate": 0.02,
    "max_ttft_ratio": 1.5,
}
_FIGURES = {"version": 2, "requests": 380, "errors": 1, "empties": 0, "streamed": 120, "ttft_p95_s": 0.21}
_CANARY = {
    "state": "running",
    "baseline": _FIGURES,
    "candidate": {**_FIGURES, "version": 3, "requests": 20},
    "policy": _POLICY,
    "step": 0,
    "step_started_at": _AT,
    "verdict": "wait",
    "reason": "Step 1 of 2 is running: 120 of 300 s, 20 of 20 requests.",
    "details": None,
    "created_at": _AT,
    "created_by": _KEY_ID,
    "ended_at": None,
}
_DELETION = {
    "id": "b3f2c1d0a9e84f7c",
    "tenant": "retail",
    "subject": "pricing@2",
    "state": "finished",
    "requested_at": _AT,
    "requested_by": _KEY_ID,
    "forced": False,
    "listings_gone_at": _AT,
    "versions": [{"name": "pricing@2", "digest": _DIGEST, "kept_on_disk": None}],
    "nodes": [
        {"node": "bd9e480f", "name": None, "reachable": True, "engine_gone_at": _LATER, "disk_gone_at": _LATER},
    ],
    "blobs": [],
    "finished_at": _LATER,
}
_PIN = {
    "name": "pricing@3",
    "tenant": "retail",
    "adapter": "pricing",
    "version": 3,
    "created_at": _AT,
    "created_by": _KEY_ID,
    "held": True,
}
_FILE = {"size": 135_168, "sha256": _SHA256, "part_bytes": 8_388_608, "parts": 1}
_UPLOAD = {
    "id": "5f0c2d9be1a74b5d8c3e6f7a90b1c2d3",
    "adapter": "pricing",
    "state": "open",
    "options": {"alias": "default"},
    "version": None,
    "created_at": _AT,
    "expires_at": "2026-03-02T09:30:00Z",
}
_WEIGHTS = "adapter_model.safetensors"
_TOTALS = {
    "requests": 380,
    "failed": 1,
    "prompt_tokens": 91_200,
    "cached_tokens": 40_000,
    "output_tokens": 30_400,
    "cold_loads": 2,
    "load_s": 0.4,
    "cost": "0.03192",
    "slot_s": 512.5,
}
_MODEL = {
    "id": "pricing",
    "object": "model",
    "created": 1_772_357_400,
    "owned_by": "retail",
    "root": "pricing@3",
    "parent": "llama-3.1-8b",
}
_PRICE = {"prompt": "0.15", "cached": "0.03", "output": "0.60", "batch": "0.5"}
_ENGINE = {
    "node": "gpu-1",
    "state": "ready",
    "restarts": 0,
    "hangs": 0,
    "kernels": {"passed_at": _AT, "seconds": 2.1, "failures": 0},
    "slots": {"total": 64, "used": 12, "pinned": 1},
    "queue": {"window": 128, "running": 3, "waiting": 0},
    "tiers": [
        {
            "tier": "host",
            "used_bytes": 262_144,
            "limit_bytes": 4_294_967_296,
            "hits": 22,
            "misses": 2,
            "hit_rate": 0.917,
            "evictions": 0,
            "failures": 0,
        }
    ],
    "load_seconds": {
        "loads": 2,
        "p50": {"fetch": 0.004, "stage": 0.033, "wait": 0.001, "copy": 0.005, "total": 0.043},
        "p99": {"fetch": 0.005, "stage": 0.126, "wait": 0.002, "copy": 0.011, "total": 0.144},
    },
    "tenants": {"total": 1, "data": [{"tenant": "retail", "weight": 1, "running": 3, "waiting": 0, "counter": 9120}]},
    "versions": {
        "total": 1,
        "data": [
            {
                "id": 12,
                "name": "retail/pricing@3",
                "tier": "slot",
                "pinned": True,
                "draining": False,
                "leases": 4,
                "running": 3,
                "waiting": 0,
                "oldest_wait_s": 0,
                "bytes": 131_072,
            }
        ],
    },
    "limits": {"available": True, "uncounted": 0},
    "replicas": [],
    "nodes": [
        {
            "id": "bd9e480f10144356b0a1ea7b0835b38c",
            "name": "gpu-1",
            "alive": True,
            "started_at": _AT,
            "seen_at": _LATER,
            "clock_ahead_s": 0,
            "clock_apart": False,
            "role": "server",
            "engine": {
                "age_s": 1.2,
                "state": "ready",
                "device": "cpu",
                "restarts": 0,
                "hangs": 0,
                "slots": {"total": 4, "used": 1, "pinned": 1},
                "running": 3,
                "waiting": 0,
                "loads": 2,
                "host_used_bytes": 262_144,
                "disk_used_bytes": 131_072,
                "versions": [{"name": "retail/pricing@3", "tier": "slot", "running": 3, "waiting": 0}],
                "more_versions": 0,
            },
        }
    ],
}
_FEED_EVENT = (
    f'{{"id": 5, "at": "{_AT}", "type": "version.ready", "tenant": "retail", "subject": "pricing@3", '
    f'"actor": "{_KEY_ID}", "before": {{"state": "validating"}}, "after": {{"default": 3}}, '
    '"node": null, "seconds": null}'
)

#: Examples of bodies, by the name of their schema.
BODIES: dict[str, Any] = {
    **inference_examples.BODIES,
    **batch_examples.BODIES,
    **file_examples.BODIES,
    "AdapterPatch": {"limits": {"requests_per_minute": 60}},
    "AliasPut": {"weights": {"2": 95, "3": 5}},
    "CanaryPut": {"version": 3, "policy": _POLICY},
    "ImportRequest": {"source": f"hf://retail/pricing@{_SHA256[:40]}", "options": {"alias": "candidate"}},
    "KeyCreate": {"name": "shop", "scopes": ["inference"], "adapters": ["pricing"]},
    "KeyPatch": {"limits": {"requests_per_minute": 60}, "addresses": ["10.0.0.0/8"]},
    "KeyRotate": {"grace_s": 3600},
    "MergeRequest": {
        "sources": [{"version": "pricing@2", "weight": 0.5}, {"version": "pricing@3", "weight": 0.5}],
        "method": "ties",
        "density": 0.5,
        "options": {"alias": "merged"},
    },
    "PartUrlsRequest": {"parts": [{"number": 1, "sha256": _SHA256}]},
    "PricePut": _PRICE,
    "RetireRequest": {"reason": "Replaced by pricing@3."},
    "TenantCreate": {"slug": "retail", "name": "Retail"},
    "TenantPatch": {"quota": {"adapters": 10, "pinned_slots": 2}, "limits": {"cost_per_month": "250.00"}},
    "UploadCreate": {
        "files": {
            "adapter_config.json": {"size": 610, "sha256": _SHA256},
            _WEIGHTS: {"size": 135_168, "sha256": _SHA256},
        },
        "options": {"alias": "candidate", "labels": {"stage": "candidate"}},
    },
    "VersionPatch": {"labels": {"stage": "production"}, "card": "Prices of spring."},
}

#: Examples of answers, by the name of their schema. Pages of a list are made from them.
ANSWERS: dict[str, Any] = {
    **inference_examples.ANSWERS,
    **batch_examples.ANSWERS,
    **file_examples.ANSWERS,
    **console_examples.ANSWERS,
    "Adapter": _ADAPTER,
    "Alias": _ALIAS,
    "AliasChange": _ALIAS_CHANGE,
    "AliasReport": {**_ALIAS, "canary": None},
    "Canary": _CANARY,
    "Deletion": _DELETION,
    "Engine": _ENGINE,
    "Key": _KEY,
    "LimitReport": {
        "currency": "USD",
        "tenant": [
            {"limit": "cost_per_month", "allowed": "250.00", "used": "12.50", "remaining": "237.50", "reset_s": 86400},
        ],
        "key": [{"limit": "requests_per_minute", "allowed": 60, "used": 7, "remaining": 53, "reset_s": 7.0}],
    },
    "Liveness": {"status": "live"},
    "Model": _MODEL,
    "ModelList": {"object": "list", "data": [_MODEL]},
    "NewKey": {**_KEY, "key": f"tnr_{_KEY_ID}_..."},
    "OwnEngine": {
        "running": 3,
        "waiting": 0,
        "total": 1,
        "data": [{"name": "pricing@3", "tier": "slot", "running": 3, "waiting": 0}],
    },
    "PartUrls": {
        "urls": [{"number": 1, "url": "https://store.example.com/parts/1?signature=...", "headers": {}}],
        "expires_in_s": 3600,
    },
    "Pin": _PIN,
    "Placement": {
        "slots": 64,
        "data": [_PIN],
        "preloads": [{"name": "retail/pricing", "versions": ["retail/pricing@3"], "problem": None}],
    },
    "Price": {"model": "retail/pricing", **_PRICE},
    "Prices": {"currency": "USD", "data": [{"model": "default", **_PRICE}]},
    "QuotaReport": {"quota": _QUOTA, "used": _USED},
    "Readiness": {"status": "ready", "checks": {"engine": "ok", "database": "ok", "store": "ok"}},
    "ServerFacts": {
        "version": "0.3.0",
        "base": _BASE,
        "device": "cpu",
        "context": 8192,
        "uploads": {
            "config_bytes": 1_048_576,
            "weights_bytes": 2_147_483_648,
            "header_bytes": 10_485_760,
            "part_bytes": 16_777_216,
            "open_uploads": 100,
            "max_lora_rank": 64,
        },
        "features": ["chat", "validate"],
        "currency": "USD",
    },
    "Session": {"created_at": _AT, "expires_at": "2026-03-01T21:30:00Z", "idle_s": 3600, "key": _KEY},
    "RunningCanary": {**_CANARY, "tenant": "retail", "adapter": "pricing", "alias": "default"},
    "Share": _SHARE,
    "SharedAdapter": _SHARED_ADAPTER,
    "SharedVersion": _SHARED_VERSION,
    "Tenant": _TENANT,
    "TenantUsage": {**_TENANT, "used": _USED},
    "Upload": {
        **_UPLOAD,
        "files": {_WEIGHTS: {**_FILE, "received": [], "direct": False}},
        "reasons": None,
        "base": {"name": "llama-3.1-8b", "chat_template_sha256": _SHA256},
    },
    "UploadList": {"data": [{**_UPLOAD, "files": {_WEIGHTS: _FILE}}]},
    "UsageReport": {
        "start": "2026-02-01T00:00:00Z",
        "end": "2026-03-01T00:00:00Z",
        "currency": "USD",
        "data": [{**_TOTALS, "tenant": None, "key": None, "adapter": "retail/pricing", "start": None}],
        "total": _TOTALS,
    },
    "Validation": {
        "valid": True,
        "reasons": [],
        "warnings": [],
        "version": {
            "rank": 8,
            "alpha": 16.0,
            "target_modules": ["q_proj", "v_proj"],
            "modules": 64,
            "saved_modules": [],
            "parameters": 32_768,
            "dtype": "F32",
        },
        "size_bytes": 135_778,
        "ignored": ["README.md"],
        "unchecked": ["Whether all values of the tensors are finite."],
        "base": {"name": "llama-3.1-8b", "chat_template_sha256": _SHA256},
    },
    "Version": _VERSION,
}

#: Examples of answers without a component, by media type or by the component of an event's data.
_TEXTS: dict[str, str] = {
    **inference_examples.EVENTS,
    "text/csv": "adapter,requests,failed,prompt_tokens,cached_tokens,output_tokens,cold_loads,load_s,cost,slot_s,"
    "currency\r\nretail/pricing,380,1,91200,40000,30400,2,0.4,0.03192,512.5,USD\r\n",
    "text/plain": "# TYPE tenora_engine_up gauge\ntenora_engine_up 1.0\n",
    "FeedEventData": f"id: 5\nevent: version.ready\ndata: {_FEED_EVENT}\n\n",
}


def add_examples(document: dict[str, Any]) -> None:
    """Add an example to each JSON or text body and answer.

    Raises:
        KeyError: a schema has no example here.
    """
    for methods in document["paths"].values():
        for operation in methods.values():
            for kind, media in operation.get("requestBody", {}).get("content", {}).items():
                if kind == "application/json":
                    media["example"] = BODIES[_name(media["schema"])]
            for kind, media in _successes(operation):
                if (example := _example(kind, media["schema"])) is not None:
                    media["example"] = example


def _successes(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for response in operation["responses"].values():
        yield from response.get("content", {}).items()


def _example(kind: str, schema: dict[str, Any]) -> Any:
    """Return the example of an answer; None for a file."""
    if kind == "text/event-stream":
        return _TEXTS[_name(event_data(schema))]
    if kind.startswith("text/"):
        return _TEXTS[kind]
    if schema.get("type") == "array":
        return [ANSWERS[_name(schema["items"])]]
    if "$ref" not in schema:
        return _MANIFEST if kind == "application/json" else None
    name = _name(schema)
    if name in ANSWERS:
        return ANSWERS[name]
    return {"data": [ANSWERS[name.removesuffix("List")]], "next_cursor": None}


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).removeprefix(SCHEMAS)

"""Response headers of the OpenAPI document."""

from itertools import chain
from typing import Any

from app.api.inference_headers import IGNORED

REQUEST_ID = "RequestId"

_STRING = {"type": "string"}


def _header(description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    fixed = {"required": True} if required else {}
    return {"description": description, **fixed, "schema": {**_STRING, **schema}}


_NAMES = {
    REQUEST_ID: "x-request-id",
    "Location": "location",
    "ETag": "etag",
    "RetryAfter": "retry-after",
    "WwwAuthenticate": "www-authenticate",
    "ShouldRetry": "x-should-retry",
    "Replayed": "idempotent-replayed",
    "Ignored": IGNORED,
    "AnsweringVersion": "x-tenora-adapter",
    "LoadMilliseconds": "x-tenora-load-ms",
    "ServerTiming": "server-timing",
    "ContentDigest": "repr-digest",
    "ContentDisposition": "content-disposition",
    **{
        f"{word.capitalize()}{unit.capitalize()}": f"x-ratelimit-{word}-{unit}"
        for word in ("limit", "remaining", "reset")
        for unit in ("requests", "tokens")
    },
}
_RATE_LIMITS = tuple(name for name, sent in _NAMES.items() if sent.startswith("x-ratelimit-"))

#: Components of all response headers.
HEADERS: dict[str, Any] = {
    REQUEST_ID: _header("Id of the request, for questions to the platform team", required=True),
    "Location": _header("Path of the created object", required=True),
    "ETag": _header("State of the object, for `If-Match`", required=True),
    "RetryAfter": _header("Seconds after which to try again", required=True, pattern="^[0-9]+$"),
    "WwwAuthenticate": _header("Always `Bearer`", required=True),
    "ShouldRetry": _header("Always `false`: OpenAI's clients retry a conflict otherwise", required=True),
    "Replayed": _header("`true` if the answer is that of an earlier request with the same `Idempotency-Key`"),
    "Ignored": _header("Names of request fields that were ignored because they cannot change the answer"),
    "AnsweringVersion": _header("Version that answered; missing for the base model"),
    "LoadMilliseconds": _header("Milliseconds that the request waited for its adapter, if it did"),
    "ServerTiming": _header("The same by phase: fetch, stage, wait, copy"),
    "ContentDigest": _header("SHA-256 of the file (RFC 9530)", required=True),
    "ContentDisposition": _header("Name of the file", required=True),
    **{name: _header("Rate limit per minute of the key or its tenant, if there is one") for name in _RATE_LIMITS},
}

_INFERENCE = ("AnsweringVersion", "LoadMilliseconds", "ServerTiming", "Ignored", *_RATE_LIMITS)

#: Operations, statuses, and the headers of these answers. An operation has the same ones under both of its paths.
_SENT: tuple[tuple[frozenset[str], frozenset[str], tuple[str, ...]], ...] = (
    (
        frozenset(
            {
                *("createCompletion", "createChatCompletion", "createResponse", "createMessage", "countMessageTokens"),
                *("tokenize", "detokenize", "generate", "generateStream", "generateCompat"),
            }
        ),
        frozenset({"200"}),
        _INFERENCE,
    ),
    (
        frozenset({"createTenant", "createKey", "rotateKey", "createUpload"}),
        frozenset({"201"}),
        ("Location",),
    ),
    (
        frozenset({"publishVersion", "importVersion", "mergeVersions", "finishUpload"}),
        frozenset({"200", "201", "202"}),
        ("Location",),
    ),
    (frozenset({"deleteVersion", "deleteAdapter"}), frozenset({"202"}), ("Location",)),
    (frozenset({"deleteFile"}), frozenset({"200"}), ("Location",)),
    (frozenset({"getAlias", "putAlias", "rollbackAlias"}), frozenset({"200", "201"}), ("ETag",)),
    (
        frozenset({"downloadVersionFile", "downloadFile"}),
        frozenset({"200"}),
        ("ETag", "ContentDigest", "ContentDisposition"),
    ),
)


def header(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a header as sent, and the reference to its component."""
    return _NAMES[name], {"$ref": f"#/components/headers/{name}"}


def success_headers(operation: str, status: str) -> dict[str, Any]:
    """Return the headers of an operation's successful answer."""
    sent = [names for operations, statuses, names in _SENT if operation in operations and status in statuses]
    return dict(header(name) for name in (REQUEST_ID, *chain.from_iterable(sent)))

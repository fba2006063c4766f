"""First steps after each error code: the source of the table in docs/troubleshooting.md."""

from typing import NamedTuple


class Remedy(NamedTuple):
    """First steps after an error.

    Attributes:
        client: for the application or person that sent the request.
        operator: for the platform team; empty if there is nothing to do.
    """

    client: str
    operator: str = ""


_ENGINE_LOG = "Read the server's log from the time of the load. Delete the version, or restore it with a platform key."

REMEDIES = {
    "adapter_bytes_corrupt": Remedy(
        "Do not retry. Tell the platform team.",
        "Remove the blobs that the log names, and push the same files again: [lost bytes](operations.md#lost-bytes).",
    ),
    "adapter_bytes_missing": Remedy(
        "Do not retry. Tell the platform team.",
        "Push the same files again: [lost bytes](operations.md#lost-bytes). Find out what removed objects.",
    ),
    "adapter_load_failed": Remedy("Use another version.", _ENGINE_LOG),
    "adapter_not_ready": Remedy(
        "Wait for the smoke test, or read its result with `tenora adapters show`. Use another version meanwhile.",
    ),
    "adapter_quarantined": Remedy("Use another version. `tenora adapters show` has the reason.", _ENGINE_LOG),
    "adapter_rejected": Remedy(
        "The message lists every reason. Correct the adapter, and check it with `tenora adapters validate`.",
        "Raise `TENORA_ENGINE__MAX_LORA_RANK` or `TENORA_LIMITS__WEIGHTS_BYTES` only if the plan has room for it.",
    ),
    "adapter_retired": Remedy("Use another version. Its owner can take it back with `tenora adapters restore`."),
    "body_too_slow": Remedy(
        "Send again on a faster connection.",
        "Look for a proxy that buffers. Lower `TENORA_LIMITS__BODY_BYTES_PER_SECOND`.",
    ),
    "busy": Remedy(
        "Retry after `Retry-After`.",
        "Find out which limit the message names. Raise it in [settings](settings.md#limits), or add a server.",
    ),
    "conflict": Remedy("Read the resource again, then decide. The message says what stands in the way."),
    "context_length_exceeded": Remedy(
        "Shorten the prompt or lower `max_tokens`.", "Raise `TENORA_ENGINE__MAX_MODEL_LEN` if the base allows it."
    ),
    "disk_full": Remedy(
        "Retry after `Retry-After`.",
        "Free space on the disk of HOME. Lower `TENORA_CACHE_BYTES`, or give HOME a larger volume.",
    ),
    "engine_unavailable": Remedy(
        "Retry after `Retry-After`.",
        "Read `/health/ready` and `tenora engine show`. If restarts repeat, the log of the engine has the reason.",
    ),
    "file_bytes_missing": Remedy(
        "Upload the file again as a new one.", "Find out what removed objects: [lost bytes](operations.md#lost-bytes)."
    ),
    "idempotency_in_progress": Remedy("Wait for the first request, then repeat with the same key."),
    "idempotency_key_reused": Remedy("Use a new Idempotency-Key for each different request."),
    "insufficient_quota": Remedy(
        "Wait for the next day or month, as `Retry-After` says.",
        "Raise the budget with `tenora tenants limits`, after a look at `tenora usage`.",
    ),
    "insufficient_scope": Remedy("Use a key with the scope that the message names.", "Issue such a key if it is due."),
    "internal_error": Remedy(
        "Retry once. Report the `x-request-id` if it happens again.", "Search the log for the request id."
    ),
    "invalid_api_key": Remedy(
        "Check the key with `tenora whoami`. Ask for a new one if it has expired or is revoked.",
        "If all keys fail, compare the pepper of this server with that of the others: [security](security.md#pepper).",
    ),
    "invalid_name": Remedy("Choose a name that the grammar in the message allows."),
    "invalid_value": Remedy("Correct the field that the message names."),
    "merge_failed": Remedy(
        "Merge fewer or smaller versions.", "Raise `TENORA_LIMITS__MERGE_SECONDS` or `TENORA_LIMITS__MERGE_BYTES`."
    ),
    "merge_rejected": Remedy("The message says which version or which part of the recipe does not fit."),
    "method_not_allowed": Remedy("Look up the route at `/docs`."),
    "not_found": Remedy(
        "Check the name, and that the key belongs to the tenant that owns or shares the adapter.",
        "nginx's example for clients outside also answers so for `/admin`, `/metrics` and `/docs`.",
    ),
    "precondition_failed": Remedy("Read the resource again, and repeat with its new ETag."),
    "queue_full": Remedy(
        "Send fewer requests at a time, and retry after `Retry-After`.",
        "Compare the tenant's load with its weight. Raise `TENORA_QUEUE__TENANT_REQUESTS`, or add a server.",
    ),
    "quota_exceeded": Remedy(
        "Delete versions that are no longer needed.", "Raise the quota with `tenora tenants quota`."
    ),
    "rate_limit_exceeded": Remedy(
        "Retry after `Retry-After`, and send more evenly.", "Raise the limit with `tenora tenants limits`."
    ),
    "registry_unavailable": Remedy(
        "Retry after `Retry-After`.",
        "Check PostgreSQL: [causes](operations.md#database). After an upgrade: `tenora server migrate --check`.",
    ),
    "source_unavailable": Remedy(
        "Retry, or push the files from your machine.", "Check the way from this server to the source."
    ),
    "store_of_another_registry": Remedy(
        "Tell the platform team.",
        "Give each registry its own prefix. After a restore: [store adopt](operations.md#restore).",
    ),
    "store_unavailable": Remedy(
        "Retry after `Retry-After`.", "Check the bucket, the credentials and the way to them. The log has the S3 error."
    ),
    "too_large": Remedy("Send less. The message has the limit.", "[Settings](settings.md#limits) has the limits."),
    "too_many_open": Remedy("Finish or cancel open ones. The message says which kind."),
    "unsupported_base": Remedy("Tell the platform team.", "Serve a Llama. The message names the missing fields."),
    "unsupported_encoding": Remedy("Send the body without this content encoding."),
    "unsupported_field": Remedy("Leave the field out. [HTTP](http.md) lists what each route supports."),
    "validation_limit": Remedy(
        "Check the file with `tenora adapters validate`. A sound adapter of this size needs higher limits.",
        "Raise `TENORA_LIMITS__VALIDATION_SECONDS` or `TENORA_LIMITS__VALIDATION_BYTES`.",
    ),
    "wrong_base": Remedy(
        "Train and push the adapter for the base that runs.",
        "Check `TENORA_BASE_MODEL` and its revision on this server.",
    ),
}

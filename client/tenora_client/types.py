"""Typed answers of the server, generated from its OpenAPI document by `make client-types`.

Fields that a release does not know are ignored.
"""

# Schemas: bdbbc1c8bd11bff2e9d4a7bb4d074170fd3c3f55b8b90b6e6809eb4e372d87b5
from __future__ import annotations

from datetime import datetime
from typing import Any, Union

from msgspec import field

from tenora_client.answers import Answer


class Alias(Answer, frozen=True, kw_only=True):
    """
    Alias as the server shows it.

    Attributes:
        model: Value of `model` in requests.
        weights: Version -> weight of its traffic, newest first.
        revision: Number that grows with every change. In quotes, it is the ETag.
    """

    name: str
    model: str
    weights: dict[str, int]
    revision: int
    updated_at: datetime


class AliasChange(Answer, frozen=True, kw_only=True):
    """
    Alias change as the server shows it.

    Attributes:
        actor: Id of the key that made the change, or `canary`.
        weights: Version -> weight of its traffic; null: the alias was deleted.
    """

    revision: int
    at: datetime
    actor: str
    action: str
    weights: Union[dict[str, int], None] = None
    reason: Union[str, None] = None


class AuditRow(Answer, frozen=True, kw_only=True):
    """
    Audit row as the server shows it.

    Attributes:
        actor: Id of a key, `cli`, `engine` or `canary`.
        actor_name: Owner of that key, or else its name.
        action: Action, such as `alias.move`.
        tenant: Slug of the owner; null: the platform.
        subject: Name of the changed object, or the id of a key.
        before: State before the change.
        after: State after the change.
        sealed: Whether the row has its seal; a row gets it within seconds.
    """

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    before: Any
    after: Any
    sealed: bool
    actor_name: Union[str, None] = None
    tenant: Union[str, None] = None


class AuditVerification(Answer, frozen=True, kw_only=True):
    """
    Result of a verification of the whole trail.

    Attributes:
        intact: Whether no row and no seal was changed, removed or inserted.
        sealed: Number of sealed rows.
        fresh: Number of rows without a seal yet.
        trimmed: Highest id of the rows that retention removed; 0: none.
        problems: The first 100 problems, the oldest first.
    """

    intact: bool
    sealed: int
    fresh: int
    trimmed: int
    problems: list[str]
    problem_count: int


class Base(Answer, frozen=True, kw_only=True):
    """
    Base as the server shows it.

    Attributes:
        digest: `sha256:` and 64 hex digits, over its config and the index of its weights.
    """

    name: str
    digest: str


class BatchCounts(Answer, frozen=True, kw_only=True):
    """
    Batch counts as the server shows it.

    Attributes:
        total: Number of lines; 0 until they are validated.
        completed: Lines with an answer.
        failed: Lines with an error.
    """

    total: int
    completed: int
    failed: int


class BatchProblem(Answer, frozen=True, kw_only=True):
    """
    Batch problem as the server shows it.

    Attributes:
        line: Number of the line in the input file, from 1; null: the whole batch.
        param: Field that caused it, such as `body.max_tokens`.
    """

    code: str
    message: str
    line: Union[int, None] = None
    param: Union[str, None] = None


class BatchProblems(Answer, frozen=True, kw_only=True):
    """
    Batch problems as the server shows it.

    Attributes:
        data: The first 1,000 problems.
    """

    data: list[BatchProblem]
    object: Union[str, None] = None


class CachedTokens(Answer, frozen=True, kw_only=True):
    """
    Cached tokens as the server shows it.

    Attributes:
        cached_tokens: Tokens from the engine's prefix cache.
    """

    cached_tokens: int


class CanaryFigures(Answer, frozen=True, kw_only=True):
    """
    Canary figures as the server shows it.

    Attributes:
        requests: Answers that ended, successfully or not.
        empties: Answers without text or tool call, or computed from NaN.
        streamed: Answers with a known time to first token.
        ttft_p95_s: 95th percentile of the time to first token, in seconds.
    """

    version: int
    requests: int
    errors: int
    empties: int
    streamed: int
    ttft_p95_s: Union[float, None] = None


class CanaryStep(Answer, frozen=True, kw_only=True):
    """
    Canary step as the server shows it.

    Attributes:
        weight: Candidate's share of the traffic in percent; must rise from step to step.
        seconds: Minimum duration of the step in seconds.
    """

    weight: int
    seconds: int


class Cause(Answer, frozen=True, kw_only=True):
    """
    Cause as the server shows it.
    """

    code: str
    message: str


class DeletedBlob(Answer, frozen=True, kw_only=True):
    """
    Deleted blob as the server shows it.

    Attributes:
        gone_at: Time at which the store confirmed that the bytes are gone.
        kept: Reason why the bytes are kept.
    """

    digest: str
    gone_at: Union[datetime, None] = None
    kept: Union[str, None] = None


class DeletedFile(Answer, frozen=True, kw_only=True):
    """
    OpenAI's answer to a deletion.

    Attributes:
        deletion: Id of the deletion; `/v1/deletions/{deletion}` reports when the bytes are gone.
    """

    id: str
    deletion: str
    object: Union[str, None] = None
    deleted: Union[bool, None] = None


class DeletedVersion(Answer, frozen=True, kw_only=True):
    """
    Deleted version as the server shows it.

    Attributes:
        kept_on_disk: Reason why nodes kept these bytes; null: they did not. Shown to platform keys only.
    """

    name: str
    digest: str
    kept_on_disk: Union[str, None] = None


class DeletionNode(Answer, frozen=True, kw_only=True):
    """
    Deletion node as the server shows it.

    Attributes:
        name: Name of the machine; shown to platform keys only.
        reachable: Whether the node is reachable. If not, the state of its disk is unknown until it returns.
        engine_gone_at: Time at which its engine confirmed that it holds none of the versions.
        disk_gone_at: Time at which its disk cache was verified to hold none of them.
    """

    node: str
    reachable: bool
    name: Union[str, None] = None
    engine_gone_at: Union[datetime, None] = None
    disk_gone_at: Union[datetime, None] = None


class File(Answer, frozen=True, kw_only=True):
    """
    OpenAI's file object.

    Attributes:
        bytes: Size in bytes.
        created_at: Unix time in seconds.
        expires_at: Unix time in seconds after which the file is deleted.
        filename: Name of the file, without path and unprintable characters.
        purpose: `batch` for inputs, `batch_output` for results.
    """

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    object: Union[str, None] = None
    status: Union[str, None] = None


class LimitStatus(Answer, frozen=True, kw_only=True):
    """
    Limit status as the server shows it.

    Attributes:
        allowed: Value of the limit; a cost is a decimal.
        used: Amount used, including the maximum of running requests; null for a limit of each request.
        reset_s: Seconds until the whole limit is free again; null: time does not free it.
    """

    limit: str
    allowed: Union[int, str]
    remaining: Union[int, str]
    used: Union[int, str, None] = None
    reset_s: Union[float, None] = None


class Limits(Answer, frozen=True, kw_only=True):
    """
    Limits. Null means no limit.

    Attributes:
        cost_per_day: Cost per day (UTC), as a decimal.
        cost_per_month: Cost per month (UTC), as a decimal.
    """

    requests_per_minute: Union[int, None] = None
    tokens_per_minute: Union[int, None] = None
    concurrent_requests: Union[int, None] = None
    tokens_per_request: Union[int, None] = None
    tokens_per_day: Union[int, None] = None
    tokens_per_month: Union[int, None] = None
    cost_per_day: Union[str, None] = None
    cost_per_month: Union[str, None] = None


class NewKey(Answer, frozen=True, kw_only=True):
    """
    New key as the server shows it.

    Attributes:
        tenant: Slug of the tenant; null: a platform key.
        owner: Person or application that uses the key.
        last_used_at: Time of its last use, about a minute behind; null: never used.
        adapters: Models that the key may use; null: all models of its tenant.
        addresses: Networks that the key may be used from; null: any.
        key: The key itself, which is shown only once.
    """

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    limits: Limits
    key: str
    tenant: Union[str, None] = None
    owner: Union[str, None] = None
    last_used_at: Union[datetime, None] = None
    expires_at: Union[datetime, None] = None
    revoked_at: Union[datetime, None] = None
    adapters: Union[list[str], None] = None
    addresses: Union[list[str], None] = None


class Percentiles(Answer, frozen=True, kw_only=True):
    """
    Percentiles in seconds, up to 19% too large; null without a measured request.
    """

    p50: Union[float, None] = None
    p95: Union[float, None] = None
    p99: Union[float, None] = None


class Pin(Answer, frozen=True, kw_only=True):
    """
    Pin as the server shows it.

    Attributes:
        name: Name of the version: `adapter@number`.
        created_by: Id of the key that pinned it.
        held: Whether this server's engine holds it already. The engine follows within about a second.
    """

    name: str
    tenant: str
    adapter: str
    version: int
    created_at: datetime
    created_by: str
    held: bool


class Price(Answer, frozen=True, kw_only=True):
    """
    Price as the server shows it.

    Attributes:
        model: Model: `default`, `base` or `tenant/adapter`.
        batch: Factor of these prices for lines of batches.
    """

    model: str
    prompt: str
    cached: str
    output: str
    batch: str


class Prices(Answer, frozen=True, kw_only=True):
    """
    Prices as the server shows it.
    """

    currency: str
    data: list[Price]


class Provenance(Answer, frozen=True, kw_only=True):
    """
    Provenance of a version. Fields are null on versions that were published before Tenora recorded them.

    Attributes:
        uploaded_by: Id of the key that published it.
        uploaded_by_name: Owner of that key, or else its name; null for a key of the platform.
        uploaded_from: Address that the upload came from.
        source: Source: its `kind` and details of that kind, e.g. the recipe of a merge.
        peft_version: PEFT version in `adapter_config.json`.
        target_modules: Linear layers that it changes.
        parameters: Number of values in its tensors.
        dtype: Data type of its tensors, in safetensors' spelling.
        base: Base model that it was checked against.
    """

    uploaded_by: str
    uploaded_at: datetime
    source: dict[str, Any]
    uploaded_by_name: Union[str, None] = None
    uploaded_from: Union[str, None] = None
    training_run: Union[str, None] = None
    peft_version: Union[str, None] = None
    alpha: Union[float, None] = None
    target_modules: Union[list[str], None] = None
    parameters: Union[int, None] = None
    dtype: Union[str, None] = None
    base: Union[Base, None] = None


class Quota(Answer, frozen=True, kw_only=True):
    """
    Quota of a tenant. Null means no limit.
    """

    adapters: Union[int, None] = None
    versions: Union[int, None] = None
    bytes: Union[int, None] = None
    rank: Union[int, None] = None
    pinned_slots: Union[int, None] = None


class QuotaUse(Answer, frozen=True, kw_only=True):
    """
    Quota use as the server shows it.

    Attributes:
        rank: Largest rank of any version.
    """

    adapters: int
    versions: int
    bytes: int
    rank: int
    pinned_slots: int


class Quote(Answer, frozen=True, kw_only=True):
    """
    Estimate of a batch, made when its lines were validated.

    Attributes:
        prompt_tokens: Tokens of all prompts.
        most_output_tokens: Most tokens of all answers.
        most_cost: Most that the batch can cost.
        expected_s: Seconds to the end at the rate of the tenant's last batch; null: unknown.
    """

    lines: int
    prompt_tokens: int
    most_output_tokens: int
    most_cost: str
    expected_s: Union[float, None] = None


class Reason(Answer, frozen=True, kw_only=True):
    """
    One reason for a rejection, with all its occurrences.

    Attributes:
        field: Place where it was found first.
        message: What happened and what to do, for people.
        count: Number of places where it was found.
    """

    code: str
    field_: str = field(name="field")
    found: str
    allowed: str
    message: str
    count: int


class ReasoningTokens(Answer, frozen=True, kw_only=True):
    """
    Reasoning tokens as the server shows it.

    Attributes:
        reasoning_tokens: Always 0.
    """

    reasoning_tokens: Union[int, None] = None


class Request(Answer, frozen=True, kw_only=True):
    """
    A request that reached the engine. Its prompt and its answer are stored nowhere.

    Attributes:
        id: The request's `x-request-id`.
        at: Time of arrival.
        tenant: Slug of the tenant that is charged.
        key: Id of the key.
        key_name: Owner of the key, or else its name.
        adapter: `tenant/adapter@3`; empty for the base model.
        cached_tokens: Prompt tokens from the engine's cache.
        ttft_s: Seconds to the first token in the engine; null: there was none.
        duration_s: Seconds to the end of the answer.
        load_s: Seconds that it waited for its adapter to load; null: not at all.
        slot_s: Its part of the seconds for which the adapter had a slot.
        status: 200, the status of the error that ended it, or 499 if the client disconnected.
        cost: Cost as a decimal, at the prices of its arrival.
    """

    id: str
    at: datetime
    key: str
    adapter: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    duration_s: float
    slot_s: float
    status: int
    cost: str
    tenant: Union[str, None] = None
    key_name: Union[str, None] = None
    ttft_s: Union[float, None] = None
    load_s: Union[float, None] = None
    finish_reason: Union[str, None] = None


class ServedBase(Answer, frozen=True, kw_only=True):
    """
    Served base as the server shows it.

    Attributes:
        name: Value of `model` in requests to the base.
        digest: `sha256:` and 64 hex digits, over its config and the index of its weights.
    """

    name: str
    digest: str


class Share(Answer, frozen=True, kw_only=True):
    """
    Share as the server shows it.

    Attributes:
        recipient: Slug of the recipient. A listed recipient need not exist.
        recipient_exists: Whether the recipient is a tenant; null unless the caller has a platform key.
        created_by: Id of the key that shared it.
    """

    recipient: str
    created_at: datetime
    created_by: str
    recipient_exists: Union[bool, None] = None


class SharedAdapter(Answer, frozen=True, kw_only=True):
    """
    Shared adapter as the server shows it.

    Attributes:
        name: Value of `model` or `adapter_id` in requests: `owner/adapter`.
        versions: Ready versions, newest first.
        aliases: Alias -> version -> weight of its traffic.
    """

    name: str
    owner: str
    adapter: str
    shared_at: datetime
    versions: list[int]
    aliases: dict[str, dict[str, int]]


class SharedVersion(Answer, frozen=True, kw_only=True):
    """
    Public view of a version: without the owner's keys, addresses, sources, links and prompts.

    Attributes:
        name: Value of `model` in requests for exactly this version.
        digest: `sha256:` and 64 hex digits, over both files.
        card: Free text of the owner, to be shown as plain text.
    """

    name: str
    owner: str
    adapter: str
    number: int = field(name="version")
    state: str
    digest: str
    size_bytes: int
    rank: int
    created_at: datetime
    aliases: list[str]
    labels: dict[str, str]
    card: str
    base: Union[Base, None] = None


class Tenant(Answer, frozen=True, kw_only=True):
    """
    Tenant as the server shows it.

    Attributes:
        weight: Weight of the tenant's share of the engine while tenants compete for it, 0.001 to 1000; default:
            1.
    """

    slug: str
    name: str
    disabled: bool
    created_at: datetime
    quota: Quota
    weight: float
    limits: Limits


class TenantUsage(Answer, frozen=True, kw_only=True):
    """
    Tenant usage as the server shows it.

    Attributes:
        weight: Weight of the tenant's share of the engine while tenants compete for it, 0.001 to 1000; default:
            1.
    """

    slug: str
    name: str
    disabled: bool
    created_at: datetime
    quota: Quota
    weight: float
    limits: Limits
    used: QuotaUse


class UploadBase(Answer, frozen=True, kw_only=True):
    """
    The base model that a version will be validated against.

    Attributes:
        chat_template_sha256: SHA-256 of its chat template without surrounding white space; null: it has no chat
            template.
    """

    name: str
    chat_template_sha256: Union[str, None] = None


class UploadCaps(Answer, frozen=True, kw_only=True):
    """
    Caps of what is published. Sizes are in bytes.

    Attributes:
        config_bytes: Maximum size of `adapter_config.json`.
        weights_bytes: Maximum size of `adapter_model.safetensors`.
        header_bytes: Maximum size of the header of `adapter_model.safetensors`.
        part_bytes: Maximum size of a part of an upload in parts.
        open_uploads: Maximum number of unfinished uploads in parts of one tenant.
        max_lora_rank: Largest rank of an adapter.
    """

    config_bytes: int
    weights_bytes: int
    header_bytes: int
    part_bytes: int
    open_uploads: int
    max_lora_rank: int


class UploadRefusal(Answer, frozen=True, kw_only=True):
    """
    An upload that was refused, with its reasons.

    Attributes:
        adapter: Name under which it would have been published.
        key: Id of the key that sent it.
        key_name: Owner of that key, or else its name; null for a key of the platform.
        digest: `sha256:` and 64 hex digits over both files; null: they did not arrive.
        reasons: The first 100 reasons.
        reason_count: Number of all reasons.
    """

    adapter: str
    at: datetime
    key: str
    reasons: list[Reason]
    reason_count: int
    key_name: Union[str, None] = None
    digest: Union[str, None] = None


class UsageGroup(Answer, frozen=True, kw_only=True):
    """
    Usage group as the server shows it.

    Attributes:
        requests: Requests that reached the engine, successful or not.
        failed: Requests of these without a whole answer.
        cached_tokens: Prompt tokens from the engine's cache.
        cold_loads: Requests that waited for their adapter to load.
        load_s: Seconds that these requests waited for it.
        cost: Cost as a decimal, at the prices when the requests arrived.
        slot_s: Seconds of LoRA slots. Simultaneous requests of the tenant for one adapter share them.
        tenant: Slug of the tenant, if grouped by tenant.
        key: Id of the key, if grouped by key.
        adapter: `tenant/adapter` or `tenant/adapter@3`, if grouped by one of them; empty for the base model.
        start: Start of the hour or day (UTC), if grouped by it.
    """

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cold_loads: int
    load_s: float
    cost: str
    slot_s: float
    tenant: Union[str, None] = None
    key: Union[str, None] = None
    adapter: Union[str, None] = None
    start: Union[datetime, None] = None


class UsagePoint(Answer, frozen=True, kw_only=True):
    """
    Requests that arrived in one step.

    Attributes:
        requests: Requests that reached the engine, successful or not.
        failed: Requests of these without a whole answer.
        cold_loads: Requests that waited for their adapter to load.
        cost: Cost as a decimal; null for steps below an hour.
        ttft: Time to the first token in the engine.
        duration: Time to the end of whole answers.
    """

    start: datetime
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cold_loads: int
    load_s: float
    slot_s: float
    ttft: Percentiles
    duration: Percentiles
    cost: Union[str, None] = None


class UsageSeries(Answer, frozen=True, kw_only=True):
    """
    Usage by time. Steps without a request have no point.

    Attributes:
        start: Start of the first step.
        end: End of the last step.
        currency: Currency of the costs.
    """

    start: datetime
    end: datetime
    step: str
    data: list[UsagePoint]
    currency: str


class UsageTotals(Answer, frozen=True, kw_only=True):
    """
    Usage totals as the server shows it.

    Attributes:
        requests: Requests that reached the engine, successful or not.
        failed: Requests of these without a whole answer.
        cached_tokens: Prompt tokens from the engine's cache.
        cold_loads: Requests that waited for their adapter to load.
        load_s: Seconds that these requests waited for it.
        cost: Cost as a decimal, at the prices when the requests arrived.
        slot_s: Seconds of LoRA slots. Simultaneous requests of the tenant for one adapter share them.
    """

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cold_loads: int
    load_s: float
    cost: str
    slot_s: float


class ValidatedVersion(Answer, frozen=True, kw_only=True):
    """
    Summary of the version that an upload would make.

    Attributes:
        rank: Largest rank of its modules.
        target_modules: Kinds of linear layers that it changes.
        modules: Number of linear layers that it changes.
        saved_modules: Full copies of the head in the file, which are not served.
        parameters: Number of values in its tensors.
        dtype: Data type of its tensors, in safetensors' spelling.
    """

    rank: int
    alpha: float
    target_modules: list[str]
    modules: int
    saved_modules: list[str]
    parameters: int
    dtype: str


class Validation(Answer, frozen=True, kw_only=True):
    """
    Validation as the server shows it.

    Attributes:
        valid: Whether the upload gate found no reason against the adapter.
        reasons: All reasons, as the refusal of an upload lists them.
        warnings: Warnings for people: settings without effect, or reasons why answers may be worse than
            expected.
        version: Summary of the version; null if it is not valid.
        size_bytes: Size of both files in bytes.
        ignored: Names of the folder's files that are not part of a version.
        unchecked: Checks that only an upload makes, for people.
    """

    valid: bool
    reasons: list[Reason]
    warnings: list[str]
    size_bytes: int
    ignored: list[str]
    unchecked: list[str]
    base: UploadBase
    version: Union[ValidatedVersion, None] = None


class Version(Answer, frozen=True, kw_only=True):
    """
    Version as the server shows it.

    Attributes:
        name: Value of `model` in requests for exactly this version.
        state_reason: Reason why it is not ready.
        digest: `sha256:` and 64 hex digits, over both files as uploaded.
        size_bytes: Size of both files in bytes.
        created_by: Id of the key that published it.
        pinned: True if an engine slot is reserved for it.
        manifest: Validated `adapter_config.json`.
        card: Free text, to be shown as plain text.
        defaults: Default values of request fields.
        warnings: Warnings for people: settings without effect, or reasons why answers may be worse than
            expected.
    """

    adapter: str
    number: int = field(name="version")
    name: str
    state: str
    digest: str
    size_bytes: int
    rank: int
    created_at: datetime
    created_by: str
    aliases: list[str]
    pinned: bool
    manifest: dict[str, Any]
    provenance: Provenance
    labels: dict[str, str]
    card: str
    defaults: dict[str, Any]
    warnings: list[str]
    state_reason: Union[str, None] = None


class Adapter(Answer, frozen=True, kw_only=True):
    """
    Adapter as the server shows it.

    Attributes:
        versions: Version numbers, newest first.
        aliases: Alias -> version -> weight of its traffic.
        limits: Limits of all its callers together.
    """

    name: str
    tenant: str
    created_at: datetime
    versions: list[int]
    aliases: dict[str, dict[str, int]]
    limits: Limits


class BatchExtra(Answer, frozen=True, kw_only=True):
    """
    Fields beyond OpenAI's batch.

    Attributes:
        model: Model of lines that name none; null: the base.
        width: Maximum number of its lines that run at once; null: as many as fit.
        quote: Estimate; null until the lines are validated.
        cost: Cost of the answers so far.
        blocked: Why no line runs at present; null: nothing blocks the batch.
        reason: Why the server cancelled the batch; null: it did not.
        rate: Lines per second so far; null before the first result.
        expected_at: Expected end (Unix time) at the rate so far; null: unknown.
        warnings: Problems that do not stop the batch, as sentences.
    """

    cost: str
    warnings: list[str]
    model: Union[str, None] = None
    width: Union[int, None] = None
    quote: Union[Quote, None] = None
    blocked: Union[Cause, None] = None
    reason: Union[Cause, None] = None
    rate: Union[float, None] = None
    expected_at: Union[int, None] = None


class BatchUsage(Answer, frozen=True, kw_only=True):
    """
    Tokens of the answers so far.
    """

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class CanaryPolicy(Answer, frozen=True, kw_only=True):
    """
    Canary policy as the server shows it.

    Attributes:
        steps: Steps of the canary. After the last one, the candidate gets all the traffic.
        min_requests: Minimum number of the candidate's answers in each step.
        max_error_rate: Maximum excess of the error rate over the baseline's, 0 to 1.
        max_empty_rate: Maximum excess of the rate of empty or non-finite answers over the baseline's, 0 to 1.
        max_ttft_ratio: Maximum ratio of the 95th percentiles of time to first token (streamed answers); null:
            no maximum.
    """

    steps: Union[list[CanaryStep], None] = None
    min_requests: Union[int, None] = None
    max_error_rate: Union[float, None] = None
    max_empty_rate: Union[float, None] = None
    max_ttft_ratio: Union[float, None] = None


class Deletion(Answer, frozen=True, kw_only=True):
    """
    Report of a deletion: the copies that were verified as gone, and when.

    Attributes:
        tenant: Owner of the versions; null: removed by `tenora server gc`.
        subject: Name of a version or an adapter, `gc`, or id of a file, an upload or a batch.
        listings_gone_at: Time since which names and lists no longer show the versions.
        blobs: For versions, empty until every live node has confirmed. Shown to platform keys only, because
            kept bytes belong to another tenant.
    """

    id: str
    subject: str
    state: str
    requested_at: datetime
    requested_by: str
    forced: bool
    listings_gone_at: datetime
    versions: list[DeletedVersion]
    nodes: list[DeletionNode]
    blobs: list[DeletedBlob]
    tenant: Union[str, None] = None
    finished_at: Union[datetime, None] = None


class Key(Answer, frozen=True, kw_only=True):
    """
    Key as the server shows it.

    Attributes:
        tenant: Slug of the tenant; null: a platform key.
        owner: Person or application that uses the key.
        last_used_at: Time of its last use, about a minute behind; null: never used.
        adapters: Models that the key may use; null: all models of its tenant.
        addresses: Networks that the key may be used from; null: any.
    """

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    limits: Limits
    tenant: Union[str, None] = None
    owner: Union[str, None] = None
    last_used_at: Union[datetime, None] = None
    expires_at: Union[datetime, None] = None
    revoked_at: Union[datetime, None] = None
    adapters: Union[list[str], None] = None
    addresses: Union[list[str], None] = None


class LimitReport(Answer, frozen=True, kw_only=True):
    """
    Limit report as the server shows it.

    Attributes:
        currency: Currency of cost limits.
        tenant: Limits of all the tenant's keys together; limits that are not set are omitted.
        key: Limits of this key.
    """

    currency: str
    tenant: list[LimitStatus]
    key: list[LimitStatus]


class QuotaReport(Answer, frozen=True, kw_only=True):
    """
    Quota report as the server shows it.
    """

    quota: Quota
    used: QuotaUse


class RunningCanary(Answer, frozen=True, kw_only=True):
    """
    A running canary and its alias.

    Attributes:
        state: State: running, promoted, rolled_back or cancelled.
        baseline: Metrics of the previous version in the current step; in a last step of 100%, since the start.
        candidate: Metrics of the new version in the current step.
        step: Index of the current step, or of the step in which it ended.
        verdict: Verdict while it runs: wait, advance, promote or breach.
        reason: Reason of the verdict, or of the end.
        details: Code and metrics of the end, as in the audit trail.
        tenant: Slug of the tenant.
    """

    state: str
    baseline: CanaryFigures
    candidate: CanaryFigures
    policy: CanaryPolicy
    step: int
    step_started_at: datetime
    created_at: datetime
    created_by: str
    tenant: str
    adapter: str
    alias: str
    verdict: Union[str, None] = None
    reason: Union[str, None] = None
    details: Union[dict[str, Any], None] = None
    ended_at: Union[datetime, None] = None


class ServerFacts(Answer, frozen=True, kw_only=True):
    """
    Server facts as the server shows it.

    Attributes:
        version: Release of the server.
        device: Device of the engine: `cpu`, or the name of the GPU; empty: unknown.
        context: Maximum tokens of a request, prompt and answer together.
        features: Optional features that are on: `chat` (chats with the base), `direct_uploads` (parts go
            straight to the bucket), `import_hf`, `import_s3`, `lora_head` (adapters of the output head),
            `validate`. Ignore unknown ones.
        currency: Currency of prices and budgets (ISO 4217).
    """

    version: str
    base: ServedBase
    device: str
    context: int
    uploads: UploadCaps
    features: list[str]
    currency: str


class UsageReport(Answer, frozen=True, kw_only=True):
    """
    Totals over whole hours. Requests that ended less than a second ago may be missing.

    Attributes:
        start: Start of the first hour.
        end: End of the last hour.
        currency: Currency of the costs.
    """

    start: datetime
    end: datetime
    data: list[UsageGroup]
    total: UsageTotals
    currency: str


class Batch(Answer, frozen=True, kw_only=True):
    """
    A batch as OpenAI shows it, with `tenora` for what goes beyond.

    Attributes:
        output_file_id: File with the answers; null: none yet, or there are none.
        error_file_id: File with the errors of lines; null: none yet, or there are none.
        completion_window: Time within which the batch runs, from `10m` to `7d`: minutes (`m`), hours (`h`) or
            days (`d`).
        created_at: Unix time, as all times of a batch.
        expires_at: End of the completion window.
        model: Model of lines that name none; null: the base.
        errors: Problems of the lines, if the batch failed.
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    request_counts: BatchCounts
    usage: BatchUsage
    tenora: BatchExtra
    object: Union[str, None] = None
    output_file_id: Union[str, None] = None
    error_file_id: Union[str, None] = None
    in_progress_at: Union[int, None] = None
    finalizing_at: Union[int, None] = None
    completed_at: Union[int, None] = None
    failed_at: Union[int, None] = None
    expired_at: Union[int, None] = None
    cancelling_at: Union[int, None] = None
    cancelled_at: Union[int, None] = None
    model: Union[str, None] = None
    errors: Union[BatchProblems, None] = None
    metadata: Union[dict[str, str], None] = None


class Canary(Answer, frozen=True, kw_only=True):
    """
    Canary as the server shows it.

    Attributes:
        state: State: running, promoted, rolled_back or cancelled.
        baseline: Metrics of the previous version in the current step; in a last step of 100%, since the start.
        candidate: Metrics of the new version in the current step.
        step: Index of the current step, or of the step in which it ended.
        verdict: Verdict while it runs: wait, advance, promote or breach.
        reason: Reason of the verdict, or of the end.
        details: Code and metrics of the end, as in the audit trail.
    """

    state: str
    baseline: CanaryFigures
    candidate: CanaryFigures
    policy: CanaryPolicy
    step: int
    step_started_at: datetime
    created_at: datetime
    created_by: str
    verdict: Union[str, None] = None
    reason: Union[str, None] = None
    details: Union[dict[str, Any], None] = None
    ended_at: Union[datetime, None] = None


class AliasReport(Answer, frozen=True, kw_only=True):
    """
    Alias report as the server shows it.

    Attributes:
        model: Value of `model` in requests.
        weights: Version -> weight of its traffic, newest first.
        revision: Number that grows with every change. In quotes, it is the ETag.
        canary: Running canary, or else the last one.
    """

    name: str
    model: str
    weights: dict[str, int]
    revision: int
    updated_at: datetime
    canary: Union[Canary, None] = None

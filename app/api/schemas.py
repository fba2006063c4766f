"""JSON schemas of the administrative routes."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from app.api.limit_schemas import LimitsOut, LimitsPatch
from app.api.provenance import ProvenanceOut
from app.api.quota_schemas import QuotaOut, QuotaPatch, QuotaUseOut
from app.domain.access import Key, Scope, Tenant
from app.domain.adapters import Adapter, Version
from app.domain.quotas import Usage
from app.served_base import ServedBase as Base
from app.services.access.keys import DEFAULT_GRACE_S
from app.services.catalog.version_warnings import warnings_of
from app.services.common.validation import MAX_LIMIT

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Maximum number of items in one page")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page")]

_WEIGHT = "Weight of the tenant's share of the engine while tenants compete for it, 0.001 to 1000; default: 1"

Shown = TypeVar("Shown")


class _Body(BaseModel):
    """Request body with strict types: unknown fields are rejected. The services validate values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TenantCreate(_Body):
    slug: str
    name: str | None = Field(None, description="Display name; default: the slug")
    weight: float | None = Field(None, description=_WEIGHT)


class TenantPatch(_Body):
    name: str | None = None
    disabled: bool | None = Field(None, description="Whether the tenant's keys are refused")
    quota: QuotaPatch | None = Field(None, description="Quota; null lifts every limit")
    weight: float | None = Field(None, description=_WEIGHT)
    limits: LimitsPatch | None = Field(None, description="Limits of all its keys together; null lifts every limit")


class AdapterPatch(_Body):
    limits: LimitsPatch | None = Field(
        description="Limits of all its callers together, including recipients of shares; null lifts every limit"
    )


class KeyPatch(_Body):
    owner: str | None = Field(None, description="Person or application that uses the key; null removes it")
    limits: LimitsPatch | None = Field(
        None, description="Limits of the key, in addition to the tenant's; null lifts every limit"
    )
    adapters: list[str] | None = Field(
        None,
        description="Models that the key may use: adapter names without alias and number, or the base model's name",
        examples=[["prices", "retail/prices"]],
    )
    addresses: list[str] | None = Field(
        None, description="Networks that the key may be used from", examples=[["10.0.0.0/8"]]
    )


class KeyCreate(KeyPatch):
    name: str
    scopes: list[str] | None = Field(
        None,
        description="Scopes; default: inference. A platform key has admin (default) or metrics.",
        examples=[["inference"]],
    )
    expires_in_s: int | None = Field(None, description="Seconds until the key expires; default: never")


class KeyRotate(_Body):
    grace_s: int = Field(default=DEFAULT_GRACE_S, description="Seconds for which the old key still works")


class TenantOut(BaseModel):
    slug: str
    name: str
    disabled: bool
    created_at: datetime
    quota: QuotaOut
    weight: float = Field(description=_WEIGHT)
    limits: LimitsOut

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        return cls(**_shown_tenant(tenant))


class TenantUsageOut(TenantOut):
    used: QuotaUseOut

    @classmethod
    def using(cls, tenant: Tenant, used: Usage) -> Self:
        return cls(**_shown_tenant(tenant), used=QuotaUseOut.of(used))


class KeyOut(BaseModel):
    id: str
    tenant: str | None = Field(description="Slug of the tenant; null: a platform key")
    name: str
    owner: str | None = Field(description="Person or application that uses the key")
    scopes: list[Scope]
    created_at: datetime
    last_used_at: datetime | None = Field(description="Time of its last use, about a minute behind; null: never used")
    expires_at: datetime | None
    revoked_at: datetime | None
    limits: LimitsOut
    adapters: list[str] | None = Field(description="Models that the key may use; null: all models of its tenant")
    addresses: list[str] | None = Field(description="Networks that the key may be used from; null: any")

    @classmethod
    def of(cls, key: Key) -> "KeyOut":
        return KeyOut(**_shown(key))


class NewKeyOut(KeyOut):
    key: str = Field(description="The key itself, which is shown only once")

    @classmethod
    def made(cls, key: Key, text: str) -> Self:
        return cls(**_shown(key), key=text)


class AdapterOut(BaseModel):
    name: str
    tenant: str
    created_at: datetime
    versions: list[int] = Field(description="Version numbers, newest first")
    aliases: dict[str, dict[int, int]] = Field(description="Alias -> version -> weight of its traffic")
    limits: LimitsOut = Field(description="Limits of all its callers together")

    @classmethod
    def of(cls, adapter: Adapter) -> Self:
        return cls(
            name=adapter.name,
            tenant=adapter.tenant,
            created_at=adapter.created_at,
            versions=list(adapter.versions),
            aliases={alias: dict(targets) for alias, targets in adapter.aliases.items()},
            limits=LimitsOut.of(adapter.limits),
        )


class ReasonOut(BaseModel):
    """One reason for a rejection, with all its occurrences."""

    code: str
    field: str = Field(description="Place where it was found first")
    found: str
    allowed: str
    message: str = Field(description="What happened and what to do, for people")
    count: int = Field(description="Number of places where it was found")
    examples: list[str] = Field(description="Up to three of the places, if there are several")


class VersionOut(BaseModel):
    adapter: str
    version: int
    name: str = Field(description="Value of `model` in requests for exactly this version")
    state: str
    state_reason: str | None = Field(description="Reason why it is not ready")
    digest: str = Field(description="`sha256:` and 64 hex digits, over both files as uploaded")
    size_bytes: int = Field(description="Size of both files in bytes")
    rank: int
    created_at: datetime
    created_by: str = Field(description="Id of the key that published it")
    aliases: list[str]
    pinned: bool = Field(description="True if an engine slot is reserved for it")
    manifest: dict[str, Any] = Field(description="Validated `adapter_config.json`")
    provenance: ProvenanceOut
    labels: dict[str, str]
    card: str = Field(description="Free text, to be shown as plain text")
    defaults: dict[str, Any] = Field(description="Default values of request fields")
    warnings: list[str] = Field(
        description="Warnings for people: settings without effect, or reasons why answers may be worse than expected"
    )

    @classmethod
    def of(cls, version: Version, base: Base) -> Self:
        return cls(
            adapter=version.adapter,
            version=version.number,
            name=f"{version.adapter}@{version.number}",
            state=version.state.value,
            state_reason=version.state_reason,
            digest=f"sha256:{version.uploaded.digest}",
            size_bytes=version.uploaded.size,
            rank=version.rank,
            created_at=version.created_at,
            created_by=version.created_by,
            aliases=list(version.aliases),
            pinned=version.pinned,
            manifest=dict(version.manifest),
            provenance=ProvenanceOut.of(version),
            labels=dict(version.labels),
            card=version.card,
            defaults=dict(version.defaults),
            warnings=[*warnings_of(version, base), *(warning.message for warning in version.warnings)],
        )


class ListOut(BaseModel, Generic[Shown]):
    """One page of a list."""

    data: list[Shown]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str
    reasons: list[ReasonOut] | None = None


class ErrorResponse(BaseModel):
    """OpenAI's error envelope."""

    error: ErrorDetail


class LoraxErrorResponse(BaseModel):
    """LoRAX's error envelope."""

    error: str
    error_type: str


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """Anthropic's error envelope."""

    type: Literal["error"]
    error: AnthropicErrorDetail


def answers(*statuses: int, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """Document a route's error statuses for OpenAPI; 401, 403, 422 and 503 are always included."""
    return {status: {"model": model, "description": ERRORS[status]} for status in (401, 403, 422, 503, *statuses)}


#: HTTP status -> its description in the OpenAPI document.
ERRORS = {
    400: "Invalid value; the message names it",
    401: "Missing or invalid API key",
    403: "The key lacks the scope",
    404: "The resource does not exist, or belongs to another tenant",
    408: "The body arrived too slowly",
    409: "The state of the resource does not allow the request",
    410: "The version was retired",
    412: "The resource changed since the caller read it; the message has its ETag",
    413: "The body or a file is larger than its limit",
    415: "The body's compression is not supported",
    422: "Invalid body, name or adapter, with every reason",
    429: "A limit of the tenant or the key is reached, such as requests, tokens or open feeds",
    503: "The engine, the registry or the store does not answer now",
}


def _shown_tenant(tenant: Tenant) -> dict[str, Any]:
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "disabled": tenant.disabled,
        "created_at": tenant.created_at,
        "quota": QuotaOut.of(tenant.quota),
        "weight": tenant.weight,
        "limits": LimitsOut.of(tenant.limits),
    }


def _shown(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "owner": key.owner,
        "scopes": list(key.scopes),
        "created_at": key.created_at,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "limits": LimitsOut.of(key.restrictions.limits),
        "adapters": key.restrictions.adapters,
        "addresses": key.restrictions.addresses,
    }

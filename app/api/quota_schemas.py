"""JSON schemas of a tenant's quota."""

from dataclasses import asdict
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.quotas import Quota, Usage


class QuotaPatch(BaseModel):
    """JSON merge patch: a number sets a limit, null lifts it, omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    adapters: int | None = None
    versions: int | None = Field(None, description="Versions of all adapters together")
    bytes: int | None = Field(None, description="Bytes of both files of all versions")
    rank: int | None = Field(None, description="Largest rank of any version")
    pinned_slots: int | None = Field(None, description="Versions pinned in the engine")


class QuotaOut(BaseModel):
    """Quota of a tenant. Null means no limit."""

    adapters: int | None
    versions: int | None
    bytes: int | None
    rank: int | None
    pinned_slots: int | None

    @classmethod
    def of(cls, quota: Quota) -> Self:
        return cls(**asdict(quota))


class QuotaUseOut(BaseModel):
    adapters: int
    versions: int
    bytes: int
    rank: int = Field(description="Largest rank of any version")
    pinned_slots: int

    @classmethod
    def of(cls, used: Usage) -> Self:
        return cls(**asdict(used))


class QuotaReportOut(BaseModel):
    quota: QuotaOut
    used: QuotaUseOut

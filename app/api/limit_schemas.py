"""JSON schemas of limits."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.limits.limits import Limits


class LimitsPatch(BaseModel):
    """JSON merge patch: a value sets a limit, null lifts it, omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = Field(None, description="Tokens of prompts and answers per minute")
    concurrent_requests: int | None = None
    tokens_per_request: int | None = Field(None, description="Tokens of the prompt plus the maximum of its answer")
    tokens_per_day: int | None = Field(None, description="Tokens per day (UTC)")
    tokens_per_month: int | None = Field(None, description="Tokens per month (UTC)")
    cost_per_day: str | None = Field(None, description="Cost per day (UTC), as a decimal", examples=["12.50"])
    cost_per_month: str | None = Field(None, description="Cost per month (UTC), as a decimal")


class LimitsOut(BaseModel):
    """Limits. Null means no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    tokens_per_request: int | None
    tokens_per_day: int | None
    tokens_per_month: int | None
    cost_per_day: str | None = Field(description="Cost per day (UTC), as a decimal")
    cost_per_month: str | None = Field(description="Cost per month (UTC), as a decimal")

    @classmethod
    def of(cls, limits: Limits) -> Self:
        return cls(**dict.fromkeys(cls.model_fields) | limits.as_json)

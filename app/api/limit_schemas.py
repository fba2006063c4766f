"""JSON schemas of limits."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.limits.limits import Limits


class LimitsPatch(BaseModel):
    """JSON merge patch: a number sets a limit, null lifts it, omitted fields stay unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = Field(None, description="of prompts and answers")
    concurrent_requests: int | None = None
    tokens_per_request: int | None = Field(None, description="of the prompt, and the most that its answer may have")
    tokens_per_day: int | None = Field(None, description="of UTC")
    tokens_per_month: int | None = Field(None, description="of UTC")
    cost_per_day: str | None = Field(None, description="money as a decimal; of UTC", examples=["12.50"])
    cost_per_month: str | None = Field(None, description="money as a decimal; of UTC")


class LimitsOut(BaseModel):
    """Null means no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    tokens_per_request: int | None
    tokens_per_day: int | None
    tokens_per_month: int | None
    cost_per_day: str | None = Field(description="money as a decimal")
    cost_per_month: str | None = Field(description="money as a decimal")

    @classmethod
    def of(cls, limits: Limits) -> Self:
        return cls(**dict.fromkeys(cls.model_fields) | limits.given)

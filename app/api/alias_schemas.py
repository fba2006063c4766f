"""JSON schemas of aliases and canaries."""

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.aliases import Alias, AliasChange
from app.domain.canary_policy import Figures, Policy, Step
from app.services.rollout.aliases import MAX_WEIGHT, AliasReport
from app.services.rollout.canaries import CanaryReport

_DEFAULT = Policy()


class _Body(BaseModel):
    """Request body with strict types: unknown fields are rejected. The services validate values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AliasPut(_Body):
    version: int | None = Field(None, description="the version that gets all the traffic; this or `weights`")
    weights: dict[str, int] | None = Field(
        None, description=f"version -> its part of the traffic, 1 to {MAX_WEIGHT}", examples=[{"1": 95, "2": 5}]
    )


class StepIn(_Body):
    weight: int = Field(description="the candidate's share in percent, each step's above the one before")
    seconds: int = Field(description="how long the step lasts at least")


class PolicyIn(_Body):
    steps: list[StepIn] = Field(
        default=[StepIn(weight=step.weight, seconds=step.seconds) for step in _DEFAULT.steps],
        description="after the last one the candidate gets all the traffic for good",
    )
    min_requests: int = Field(
        _DEFAULT.min_requests, description="answers of the candidate without which a step does not end"
    )
    max_error_rate: float = Field(
        _DEFAULT.max_error_rate, description="how much higher than the baseline's the share of errors may be, 0 to 1"
    )
    max_empty_rate: float = Field(
        _DEFAULT.max_empty_rate, description="the same of answers that are empty or not finite"
    )
    max_ttft_ratio: float | None = Field(
        _DEFAULT.max_ttft_ratio,
        description="highest ratio of the 95th percentiles of time to first token, of streamed answers; null: any",
    )

    def policy(self) -> Policy:
        return Policy(
            steps=tuple(Step(step.weight, step.seconds) for step in self.steps),
            min_requests=self.min_requests,
            max_error_rate=self.max_error_rate,
            max_empty_rate=self.max_empty_rate,
            max_ttft_ratio=self.max_ttft_ratio,
        )


class CanaryPut(_Body):
    version: int = Field(description="the version to try")
    policy: PolicyIn = PolicyIn()


class FiguresOut(BaseModel):
    version: int
    requests: int = Field(description="answers that ended, well or not")
    errors: int
    empties: int = Field(description="answers without text or tool call, or computed from NaN")
    streamed: int = Field(description="answers whose time to first token is known")
    ttft_p95_s: float | None = Field(description="95th percentile of time to first token, in seconds")

    @classmethod
    def of(cls, version: int, figures: Figures) -> Self:
        return cls(version=version, **figures.summary())


class CanaryOut(BaseModel):
    state: str = Field(description="running, promoted, rolled_back or cancelled")
    baseline: FiguresOut = Field(description="the version before, in the present step; in a last step of 100% so far")
    candidate: FiguresOut = Field(description="the version on trial, in the present step")
    policy: dict[str, Any]
    step: int = Field(description="index of the step that it is in, or ended in")
    step_started_at: datetime
    verdict: str | None = Field(description="while it runs: wait, advance, promote or breach")
    reason: str | None = Field(description="why it stays, or why it ended")
    details: dict[str, Any] | None = Field(description="the end's code and figures, as the audit trail has them")
    created_at: datetime
    created_by: str
    ended_at: datetime | None

    @classmethod
    def of(cls, report: CanaryReport) -> Self:
        canary, verdict = report.canary, report.verdict
        ended = None if canary.reason is None else str(canary.reason.get("message", ""))
        return cls(
            state=canary.state.value,
            baseline=FiguresOut.of(canary.baseline, report.baseline),
            candidate=FiguresOut.of(canary.candidate, report.candidate),
            policy=dict(canary.policy),
            step=canary.step,
            step_started_at=canary.step_started_at,
            verdict=None if verdict is None else verdict.decision.value,
            reason=ended if verdict is None else verdict.message,
            details=None if canary.reason is None else dict(canary.reason),
            created_at=canary.created_at,
            created_by=canary.created_by,
            ended_at=canary.ended_at,
        )


class AliasOut(BaseModel):
    name: str
    model: str = Field(description="what callers write")
    weights: dict[int, int] = Field(description="version -> its part of the traffic, newest first")
    revision: int = Field(description="grows with every change; in quotes it is the ETag")
    updated_at: datetime

    @classmethod
    def of(cls, alias: Alias) -> Self:
        return cls(**_shown(alias))


class AliasReportOut(AliasOut):
    canary: CanaryOut | None = Field(description="the canary that runs here, or the last one that did")

    @classmethod
    def reported(cls, report: AliasReport) -> Self:
        return cls(**_shown(report.alias), canary=None if report.canary is None else CanaryOut.of(report.canary))


class AliasChangeOut(BaseModel):
    revision: int
    at: datetime
    actor: str = Field(description="id of the key that did it, or `canary`")
    action: str
    weights: dict[int, int] | None = Field(description="null: the alias was removed")
    reason: str | None

    @classmethod
    def of(cls, change: AliasChange) -> Self:
        return cls(
            revision=change.revision,
            at=change.at,
            actor=change.actor,
            action=change.action,
            weights=None if change.targets is None else dict(change.targets),
            reason=change.reason,
        )


def _shown(alias: Alias) -> dict[str, Any]:
    return {
        "name": alias.name,
        "model": f"{alias.adapter}:{alias.name}",
        "weights": dict(alias.targets),
        "revision": alias.revision,
        "updated_at": alias.updated_at,
    }

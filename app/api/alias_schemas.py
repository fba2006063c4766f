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
    version: int | None = Field(None, description="Version that gets all the traffic; send this or `weights`")
    weights: dict[str, int] | None = Field(
        None, description=f"Version -> weight of its traffic, 1 to {MAX_WEIGHT}", examples=[{"1": 95, "2": 5}]
    )


class CanaryStep(_Body):
    weight: int = Field(description="Candidate's share of the traffic in percent; must rise from step to step")
    seconds: int = Field(description="Minimum duration of the step in seconds")


class CanaryPolicy(_Body):
    steps: list[CanaryStep] = Field(
        default=[CanaryStep(weight=step.weight, seconds=step.seconds) for step in _DEFAULT.steps],
        description="Steps of the canary. After the last one, the candidate gets all the traffic.",
    )
    min_requests: int = Field(
        _DEFAULT.min_requests, description="Minimum number of the candidate's answers in each step"
    )
    max_error_rate: float = Field(
        _DEFAULT.max_error_rate, description="Maximum excess of the error rate over the baseline's, 0 to 1"
    )
    max_empty_rate: float = Field(
        _DEFAULT.max_empty_rate,
        description="Maximum excess of the rate of empty or non-finite answers over the baseline's, 0 to 1",
    )
    max_ttft_ratio: float | None = Field(
        _DEFAULT.max_ttft_ratio,
        description="Maximum ratio of the 95th percentiles of time to first token (streamed answers); null: no maximum",
    )

    @classmethod
    def of(cls, policy: Policy) -> Self:
        return cls(
            steps=[CanaryStep(weight=step.weight, seconds=step.seconds) for step in policy.steps],
            min_requests=policy.min_requests,
            max_error_rate=policy.max_error_rate,
            max_empty_rate=policy.max_empty_rate,
            max_ttft_ratio=policy.max_ttft_ratio,
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
    version: int = Field(description="Version to try")
    policy: CanaryPolicy = CanaryPolicy()


class CanaryFiguresOut(BaseModel):
    version: int
    requests: int = Field(description="Answers that ended, successfully or not")
    errors: int
    empties: int = Field(description="Answers without text or tool call, or computed from NaN")
    streamed: int = Field(description="Answers with a known time to first token")
    ttft_p95_s: float | None = Field(description="95th percentile of the time to first token, in seconds")

    @classmethod
    def of(cls, version: int, figures: Figures) -> Self:
        return cls(version=version, **figures.summary())


class CanaryOut(BaseModel):
    state: str = Field(description="State: running, promoted, rolled_back or cancelled")
    baseline: CanaryFiguresOut = Field(
        description="Metrics of the previous version in the current step; in a last step of 100%, since the start"
    )
    candidate: CanaryFiguresOut = Field(description="Metrics of the new version in the current step")
    policy: CanaryPolicy
    step: int = Field(description="Index of the current step, or of the step in which it ended")
    step_started_at: datetime
    verdict: str | None = Field(description="Verdict while it runs: wait, advance, promote or breach")
    reason: str | None = Field(description="Reason of the verdict, or of the end")
    details: dict[str, Any] | None = Field(description="Code and metrics of the end, as in the audit trail")
    created_at: datetime
    created_by: str
    ended_at: datetime | None

    @classmethod
    def of(cls, report: CanaryReport) -> Self:
        canary, verdict = report.canary, report.verdict
        ended = None if canary.reason is None else str(canary.reason.get("message", ""))
        return cls(
            state=canary.state.value,
            baseline=CanaryFiguresOut.of(canary.baseline, report.baseline),
            candidate=CanaryFiguresOut.of(canary.candidate, report.candidate),
            policy=CanaryPolicy.of(Policy.from_json(canary.policy)),
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
    model: str = Field(description="Value of `model` in requests")
    weights: dict[int, int] = Field(description="Version -> weight of its traffic, newest first")
    revision: int = Field(description="Number that grows with every change. In quotes, it is the ETag.")
    updated_at: datetime

    @classmethod
    def of(cls, alias: Alias) -> Self:
        return cls(**_shown(alias))


class AliasReportOut(AliasOut):
    canary: CanaryOut | None = Field(description="Running canary, or else the last one")

    @classmethod
    def reported(cls, report: AliasReport) -> Self:
        return cls(**_shown(report.alias), canary=None if report.canary is None else CanaryOut.of(report.canary))


class AliasChangeOut(BaseModel):
    revision: int
    at: datetime
    actor: str = Field(description="Id of the key that made the change, or `canary`")
    action: str
    weights: dict[int, int] | None = Field(description="Version -> weight of its traffic; null: the alias was deleted")
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

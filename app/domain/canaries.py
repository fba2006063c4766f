"""Canaries: gradual rollouts of a version behind an alias."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class CanaryState(StrEnum):
    """Life cycle of a canary; only ``running`` moves the alias, the other states are final."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Canary:
    """Gradual rollout of a candidate version, rolled back if it does worse than the baseline.

    Attributes:
        baseline, candidate: version numbers.
        baseline_id, candidate_id: row ids of these versions.
        policy: see :class:`app.domain.canary_policy.Policy`, as JSON.
        step: index of the current step, or of the last step after the end.
        revision: revision of the alias during that step.
        reason: reason for the end, with the figures of the last step, as JSON.
    """

    id: int
    adapter_id: int
    alias: str
    baseline: int
    candidate: int
    baseline_id: int
    candidate_id: int
    policy: Mapping[str, Any]
    step: int
    revision: int
    step_started_at: datetime
    state: CanaryState
    reason: Mapping[str, Any] | None
    created_at: datetime
    created_by: str
    ended_at: datetime | None

"""Canaries: versions that take over an alias step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class CanaryState(StrEnum):
    """Only ``running`` moves the alias; the other three are ends."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Canary:
    """A version that takes over an alias step by step, unless it does worse than the one before.

    Attributes:
        baseline, candidate: version numbers.
        baseline_id, candidate_id: the rows of those.
        policy: see :class:`app.services.canary_policy.Policy`, as JSON.
        step: index of the step that it is in, or ended in.
        revision: the alias's in that step.
        reason: why it ended, with the figures of its last step; JSON.
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

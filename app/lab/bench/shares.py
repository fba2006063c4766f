"""Fairness metrics of served tokens."""

from collections.abc import Iterable, Sequence

from app.lab.bench import report, timeline
from app.lab.bench.timeline import NotMeasured, Served

#: Sheng et al. (OSDI 2024), section 3.1: an output token costs twice a prompt token.
OUTPUT_WEIGHT = 2


def served_tokens(
    served: Sequence[Served], tenants: Iterable[str], begin: float, end: float, *, output_only: bool
) -> list[float]:
    """Count each tenant's tokens served between two times. Tenants are the samples' groups.

    Args:
        output_only: True to ignore prompts. Otherwise an output token counts twice.
    """
    pairs = (timeline.tokens_between(timeline.of(tenant, served), begin, end) for tenant in tenants)
    return [float(outputs if output_only else prompts + OUTPUT_WEIGHT * outputs) for prompts, outputs in pairs]


def jain(values: Sequence[float], weights: Sequence[float]) -> float:
    """Jain's index of values divided by their weights.

    Raises:
        NotMeasured: all values are 0.
    """
    if not any(values):
        raise NotMeasured("No tenant was served anything.")
    return report.jain([value / weight for value, weight in zip(values, weights, strict=True)])


def shares_of(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Divide each value by its weight's share of the sum. The result is 1 for an exact share.

    Raises:
        NotMeasured: all values are 0.
    """
    total, parts = sum(values), sum(weights)
    if not total:
        raise NotMeasured("No tenant was served anything.")
    return [value * parts / (weight * total) for value, weight in zip(values, weights, strict=True)]


def off_weights(values: Sequence[float], weights: Sequence[float]) -> float:
    """Largest relative deviation of a value from its weight's share of the sum.

    Raises:
        NotMeasured: all values are 0.
    """
    return max(abs(share - 1) for share in shares_of(values, weights))

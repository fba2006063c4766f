"""How evenly tenants were served."""

from collections.abc import Iterable, Sequence

from app.lab.bench import report, timeline
from app.lab.bench.timeline import NotMeasured, Served

#: Sheng et al. (OSDI 2024), section 3.1: an output token costs twice a prompt token.
OUTPUT_WEIGHT = 2


def served_tokens(
    served: Sequence[Served], tenants: Iterable[str], begin: float, end: float, *, output_only: bool
) -> list[float]:
    """Each tenant's tokens served between two moments; tenants are the samples' groups.

    Args:
        output_only: whether prompts do not count; else an output token counts twice.
    """
    pairs = (timeline.tokens_between(timeline.of(tenant, served), begin, end) for tenant in tenants)
    return [float(outputs if output_only else prompts + OUTPUT_WEIGHT * outputs) for prompts, outputs in pairs]


def jain(values: Sequence[float], weights: Sequence[float]) -> float:
    """Jain's index of values divided by their weights.

    Raises:
        NotMeasured: nobody has anything.
    """
    if not any(values):
        raise NotMeasured("no tenant was served anything")
    return report.jain([value / weight for value, weight in zip(values, weights, strict=True)])


def shares_of(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Each value as a multiple of its weight's share of the sum: 1 where the weight is met.

    Raises:
        NotMeasured: nobody has anything.
    """
    total, parts = sum(values), sum(weights)
    if not total:
        raise NotMeasured("no tenant was served anything")
    return [value * parts / (weight * total) for value, weight in zip(values, weights, strict=True)]


def off_weights(values: Sequence[float], weights: Sequence[float]) -> float:
    """How far the value that is farthest is from its weight's share of the sum, as a part of that share.

    Raises:
        NotMeasured: nobody has anything.
    """
    return max(abs(share - 1) for share in shares_of(values, weights))

"""Samples of the metrics page."""

from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from app.wiring.engine_metrics import Metrics

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def samples(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families((await metrics.render()).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        if family.name.startswith("tenora_")
        for sample in family.samples
    }

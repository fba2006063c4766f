"""Load of the replicas, and the number of replicas that it needs."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from app.ray.load_meter import LoadMeter
from app.ray.scaling import LOAD, wanted_replicas


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_short_request_between_two_readings_is_seen() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    clock.now = 2.0
    meter.begin()
    clock.now = 2.5
    meter.end()
    clock.now = 5.0
    assert meter.read() == pytest.approx(0.1)
    clock.now = 10.0
    assert meter.read() == 0.0


def test_the_load_is_the_mean_number_of_requests() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    meter.begin()
    meter.begin()
    assert meter.read() == 2.0
    clock.now = 4.0
    meter.end()
    clock.now = 8.0
    assert meter.read() == 1.5
    clock.now = 9.0
    assert meter.read() == 1.0


class Config:
    def get_target_ongoing_requests(self) -> float:
        return 10.0


@dataclass
class Context:
    current_num_replicas: int
    target_num_replicas: int
    loads: list[float]
    total_queued_requests: float = 0.0
    config: Config = field(default_factory=Config)

    @property
    def aggregated_metrics(self) -> dict[str, dict[Any, float]] | None:
        return {LOAD: dict(enumerate(self.loads))} if self.loads else None


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        (Context(1, 1, [25.0]), 2.5),
        (Context(2, 2, [5.0, 5.0]), 1.0),
        (Context(2, 2, [0.0, 0.0]), 0.0),
        (Context(1, 1, [5.0], total_queued_requests=20.0), 2.5),
        # Ray itself starts the first replica.
        (Context(0, 1, []), 1),
        # A replica that has not reported yet may be busy.
        (Context(1, 1, []), 1),
        (Context(2, 3, [1.0]), 3),
        (Context(2, 2, [50.0]), 5.0),
    ],
)
def test_the_load_decides_the_number_of_replicas(context: Context, wanted: float) -> None:
    assert wanted_replicas(context) == (wanted, {})

"""Readiness: probes, probe rate and reported messages."""

import asyncio

import pytest

from adapters.errors import ForeignStore, StoreUnavailable
from app.domain.errors import EngineUnavailable
from app.services.operations import readiness
from app.services.operations.readiness import Readiness


class Probe:
    """Probe that counts its calls, and fails or hangs on request."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_all_probes_are_asked_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    probes, clock = {"engine": Probe(), "store": Probe()}, Clock()
    asked = Readiness(probes, clock=clock)
    for _ in range(3):
        assert await asked.problems() == {"engine": None, "store": None}
    await asyncio.gather(asked.problems(), asked.problems())
    assert [probe.asked for probe in probes.values()] == [1, 1]
    clock.now = 1.0
    await asyncio.gather(asked.problems(), asked.problems())
    assert [probe.asked for probe in probes.values()] == [2, 2]


async def test_only_our_own_words_are_shown() -> None:
    probes = {"engine": Probe(), "store": Probe()}
    probes["engine"].error = EngineUnavailable("The engine is starting.")
    probes["store"].error = StoreUnavailable("AccessDenied for s3://internal")
    expected = {"engine": "The engine is starting.", "store": "The store does not answer."}
    assert await Readiness(probes).problems() == expected


async def test_another_registrys_store_is_named_without_its_id() -> None:
    probe = Probe()
    probe.error = ForeignStore("The store belongs to registry abc")
    assert await Readiness({"store": probe}).problems() == {"store": "The store belongs to another registry."}


async def test_a_probe_that_hangs_is_not_asked_again_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_TIMEOUT_S", 0.01)
    probe, clock = Probe(), Clock()
    probe.gate.clear()
    asked = Readiness({"store": probe}, clock=clock)
    for _ in range(3):
        assert await asked.problems() == {"store": "The store does not answer."}
        clock.now += 1.0
    assert probe.asked == 1
    probe.gate.set()
    assert await asked.problems() == {"store": None}


async def test_a_defect_of_a_probe_is_not_hidden() -> None:
    probe = Probe()
    probe.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await Readiness({"store": probe}).problems()

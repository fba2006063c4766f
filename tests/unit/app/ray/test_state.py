"""Report of a replica to the routing rule."""

from dataclasses import replace

import pytest

from app.domain.load_phases import LoadPhases
from app.engine.port import EngineEvent
from app.engine.status import EngineState, StatusReport, VersionResidency
from app.ray.snapshot import NO_REPORT
from app.ray.state import LoadTimes, replica_report
from app.scheduling.replica_report import ReplicaReport

STATUS = replace(
    NO_REPORT.status,
    state=EngineState.READY,
    slots=4,
    running=3,
    waiting=2,
    queued_tokens=500.0,
    tokens_per_s=100.0,
)
SLOT = VersionResidency(1, "slot", 1, 1, 0, 10, 0.0, draining=False, digest="a")
HOST = VersionResidency(2, "host", 0, 0, 0, 10, 0.0, draining=False, digest="b")
LOADING = VersionResidency(3, "loading", 0, 0, 1, 0, 0.5, draining=False, digest="c")
UNKNOWN = VersionResidency(4, "slot", 0, 0, 0, 10, 0.0, draining=False)


def test_the_report_names_versions_by_digest_and_tier() -> None:
    report = replica_report("node", StatusReport(STATUS, (SLOT, HOST, LOADING, UNKNOWN), ()), {"b", "d"})
    assert report == ReplicaReport(
        "node",
        4,
        in_flight=5,
        queued_tokens=500.0,
        tokens_per_s=100.0,
        resident=frozenset("a"),
        staged=frozenset("b"),
        on_disk=frozenset("bd"),
    )


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_a_replica_whose_engine_is_not_ready_says_so(state: EngineState) -> None:
    assert not replica_report("node", StatusReport(replace(STATUS, state=state), (), ())).ready


def test_load_times_follow_the_loads_phase_by_phase() -> None:
    times, usual = LoadTimes(), ReplicaReport("node", 0)
    times.note(EngineEvent("evict", 1))
    times.note(EngineEvent("load", 1, 4.0, LoadPhases(0.0, 0.0, 3.0, 1.0)))
    assert times.copy_s > usual.copy_s
    assert (times.stage_s, times.fetch_s) == (usual.stage_s, usual.fetch_s)
    for _ in range(100):
        times.note(EngineEvent("load", 1, 7.0, LoadPhases(4.0, 2.0, 0.0, 1.0)))
    report = replica_report("node", NO_REPORT, times=times)
    assert (report.fetch_s, report.stage_s, report.copy_s) == pytest.approx((4.0, 2.0, 1.0))

"""Snapshots of replicas and their sum."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.port import EngineEvent
from app.engine.status import EngineState, KernelChecks, StatusReport, TenantQueue, TierStats, VersionResidency
from app.ray.digest_prefixes import MAX_DIGESTS, DigestPrefixes, decode_digests, encode_digests
from app.ray.snapshot import (
    NO_REPORT,
    Recorder,
    Snapshot,
    decode_number,
    decode_snapshot,
    encode_numbers,
    encode_snapshot,
    merged,
)
from app.ray.wire import WIRE_VERSION, OtherWireVersion, WireError
from app.scheduling.replica_report import ReplicaReport

COUNTS = st.integers(0, 10**6)
STATUSES = st.builds(
    replace,
    st.just(NO_REPORT.status),
    state=st.sampled_from(EngineState),
    slots=COUNTS,
    slots_used=COUNTS,
    running=COUNTS,
    waiting=COUNTS,
    pinned=st.frozensets(COUNTS, max_size=3),
    tiers=st.lists(st.builds(TierStats, st.sampled_from(["disk", "host", "slot"]), COUNTS, COUNTS, COUNTS, COUNTS)).map(
        tuple
    ),
    kernels=st.builds(KernelChecks, COUNTS, st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 100)),
    device=st.sampled_from(["", "cpu", "NVIDIA H200"]),
)
VERSIONS = st.builds(
    VersionResidency,
    st.integers(1, 5),
    st.sampled_from(["slot", "host", "disk", "loading"]),
    *[COUNTS] * 4,
    st.floats(0, 100),
    st.booleans(),
)
TENANTS = st.builds(TenantQueue, st.sampled_from("abc"), st.floats(0.1, 10), COUNTS, COUNTS, st.floats(0, 1e9))
REPORTS = st.builds(StatusReport, STATUSES, st.lists(VERSIONS).map(tuple), st.lists(TENANTS).map(tuple))
EVENTS = st.builds(EngineEvent, st.sampled_from(["load", "evict", "unload", "load_failed"]), COUNTS)
DIGESTS = st.frozensets(st.text("0123456789abcdef", min_size=1, max_size=64), max_size=3).map(DigestPrefixes)
ROUTING = st.builds(
    ReplicaReport,
    st.text("0123456789abcdef", min_size=1),
    COUNTS,
    st.booleans(),
    COUNTS,
    st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
    *[DIGESTS] * 3,
    *[st.floats(0, 100)] * 3,
)
SNAPSHOTS = st.builds(
    Snapshot,
    st.just(WIRE_VERSION),
    st.text("0123456789abcdef"),
    COUNTS,
    REPORTS,
    ROUTING,
    COUNTS,
    st.lists(EVENTS, max_size=3).map(tuple),
    st.lists(st.floats(0, 100), max_size=3).map(tuple),
)


@given(SNAPSHOTS)
def test_snapshots_round_trip(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@given(st.sets(st.text("0123456789abcdef", min_size=64, max_size=64)), st.text("0123456789abcdef", min_size=64))
def test_prefixes_name_the_digests_that_were_sent(digests: set[str], other: str) -> None:
    sent = decode_digests(encode_digests(digests))
    assert all(digest in sent for digest in digests)
    assert (other in sent) == (other[:16] in {digest[:16] for digest in digests})


def test_a_full_disk_cache_does_not_make_a_snapshot_large() -> None:
    digests = [sha256(str(number).encode()).hexdigest() for number in range(10_000)]
    residencies = [
        VersionResidency(n, "host", 0, 0, 0, 2**20, 0.0, draining=False, digest=digests[n]) for n in range(500)
    ]
    report = StatusReport(NO_REPORT.status, tuple(residencies), ())
    routing = ReplicaReport("a" * 32, 64, staged=set(digests[:500]), on_disk=set(digests))
    data = encode_snapshot(Snapshot(WIRE_VERSION, "b" * 32, 7, report, routing))
    assert len(data) < 100_000
    decoded = decode_snapshot(data)
    assert len(decoded.routing.on_disk) == MAX_DIGESTS
    assert all(digest in decoded.routing.staged for digest in digests[:500])
    assert len(decoded.report.versions) == 500


@given(
    st.binary(max_size=100)
    | st.builds(lambda text: json.dumps({"wire": WIRE_VERSION, "node": text}).encode(), st.text())
)
def test_hostile_snapshots_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_snapshot(data)


def test_a_snapshot_of_another_release_is_refused() -> None:
    with pytest.raises(OtherWireVersion, match="same release"):
        decode_snapshot(b'{"wire": 1}')


@given(st.lists(REPORTS, min_size=1, max_size=4))
def test_the_sum_counts_every_request_and_slot_once(reports: list[StatusReport]) -> None:
    total = merged(reports)
    for name in ("slots", "slots_used", "running", "waiting"):
        assert getattr(total.status, name) == sum(getattr(report.status, name) for report in reports)
    assert sum(version.running for version in total.versions) == sum(
        version.running for report in reports for version in report.versions
    )
    assert len({version.version_id for version in total.versions}) == len(total.versions)
    assert len({tenant.tenant for tenant in total.tenants}) == len(total.tenants)
    ready = EngineState.READY
    assert (total.status.state is ready) == any(report.status.state is ready for report in reports)


def test_without_replicas_the_fleet_is_starting() -> None:
    assert merged([]).status.state is EngineState.STARTING


def test_the_recorder_gives_each_event_and_wait_once() -> None:
    recorder = Recorder()
    load, evict = EngineEvent("load", 1), EngineEvent("evict", 1)
    recorder.note(load)
    recorder.waited(0.5)
    assert (recorder.events_after(None), recorder.waits_after(None)) == ((), ())
    known = recorder.number
    recorder.note(evict)
    recorder.waited(0.75)
    assert (recorder.events_after(known), recorder.waits_after(known)) == ((evict,), (0.75,))
    assert recorder.events_after(0) == (load, evict)
    assert recorder.events_after(recorder.number) == ()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"p": "1"}', b'{"p": true}', b'{"q": 1}', b"\xff"])
def test_a_process_that_the_gateway_does_not_know_has_no_number(data: bytes) -> None:
    assert decode_number(data, "p") is None


def test_the_number_of_a_known_process_is_read() -> None:
    assert decode_number(encode_numbers({"p": 7, "q": 1}), "p") == 7

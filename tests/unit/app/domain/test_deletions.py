"""Pure rules of deletions."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from adapters.identity import VersionKey
from app.domain.deletions import (
    ALIVE_S,
    CLAIM_S,
    FORGOTTEN_S,
    BlobFate,
    DeletedVersion,
    Deletion,
    Node,
    NodeFate,
    awaited,
    claim,
    claimed_by_others,
    node_views,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KEY = VersionKey(7, "a" * 64, "b" * 64, 10, 20)
DELETION = Deletion(
    id="d",
    tenant="pricing",
    subject="prices@1",
    versions=(DeletedVersion(KEY, "prices@1"),),
    requested_at=NOW,
    requested_by="key",
    forced=False,
    nodes={},
    blobs={},
    finished_at=None,
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def node(name: str, seen_s_ago: float = 0.0) -> Node:
    return Node(name, f"host of {name}", ago(10**6), ago(seen_s_ago))


NODES = [node("here"), node("stale", ALIVE_S), node("forgotten", FORGOTTEN_S + 1)]


def test_only_nodes_that_are_alive_are_waited_for() -> None:
    assert awaited(DELETION, NODES, NOW) == ["here"]
    half = replace(DELETION, nodes={"here": NodeFate("here", engine_gone_at=NOW)})
    assert awaited(half, NODES, NOW) == ["here"]
    whole = replace(DELETION, nodes={"here": NodeFate("here", NOW, NOW)})
    assert awaited(whole, NODES, NOW) == []
    assert awaited(replace(DELETION, versions=()), NODES, NOW) == []


def test_a_report_names_the_nodes_that_could_not_be_asked() -> None:
    views = {view.node: view for view in node_views(DELETION, NODES, NOW)}
    assert {name: view.reachable for name, view in views.items()} == {"here": True, "stale": False}
    ended = replace(DELETION, finished_at=NOW, nodes={"stale": NodeFate("stale"), "here": NodeFate("here", NOW, NOW)})
    later = [replace(NODES[0], seen_at=ago(ALIVE_S)), NODES[1], node("new")]
    views = {view.node: view for view in node_views(ended, later, NOW)}
    assert {name: view.reachable for name, view in views.items()} == {"here": True, "stale": False}
    assert node_views(replace(DELETION, versions=()), NODES, NOW) == []


def test_blobs_are_decided_once_each_is_gone_or_kept() -> None:
    assert DELETION.digests == ("a" * 64, "b" * 64)
    assert not DELETION.blobs_decided
    gone = {"a" * 64: BlobFate(gone_at=NOW)}
    assert not replace(DELETION, blobs=gone).blobs_decided
    assert replace(DELETION, blobs=gone | {"b" * 64: BlobFate(kept="in use")}).blobs_decided


def test_a_fresh_claim_keeps_only_other_nodes_out() -> None:
    mine = claim(DELETION, "here", NOW, most=50)
    assert mine is not None
    assert all(fate.claimed_by == "here" for fate in mine.values())
    claimed = replace(DELETION, blobs=mine)
    assert claim(claimed, "there", NOW + timedelta(seconds=CLAIM_S - 1), most=50) is None
    assert claim(claimed, "there", NOW + timedelta(seconds=CLAIM_S), most=50) is not None
    again = claim(claimed, "here", NOW + timedelta(seconds=1), most=50)
    assert again is not None
    assert all(fate.claimed_at == NOW + timedelta(seconds=1) for fate in again.values())


def test_claims_are_bounded_and_skip_decided_rows() -> None:
    first = claim(DELETION, "here", NOW, most=1)
    assert first is not None
    assert [fate.claimed_by for fate in first.values()] == ["here", None]
    second = claim(replace(DELETION, blobs={"a" * 64: BlobFate(gone_at=NOW)}), "here", NOW, most=1)
    assert second is not None
    assert second["a" * 64] == BlobFate(gone_at=NOW)
    assert second["b" * 64].claimed_by == "here"


def test_publishers_wait_only_for_claims_on_their_bytes() -> None:
    fresh = {"a" * 64: BlobFate(claimed_at=NOW, claimed_by="here")}
    assert claimed_by_others([fresh], ["a" * 64], NOW)
    assert not claimed_by_others([fresh], ["c" * 64], NOW)
    assert not claimed_by_others([fresh], ["a" * 64], NOW + timedelta(seconds=CLAIM_S))
    decided = {"a" * 64: BlobFate(claimed_at=NOW, claimed_by="here", gone_at=NOW)}
    assert not claimed_by_others([decided], ["a" * 64], NOW)


# Hypothesis takes naive bounds.
_MOMENTS = st.none() | st.datetimes(min_value=datetime(2020, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(st.builds(BlobFate, _MOMENTS, st.none() | st.text(), _MOMENTS, st.none() | st.text()))
def test_fates_survive_being_written_down(fate: BlobFate) -> None:
    assert BlobFate.from_json(fate.as_json()) == fate


def test_versions_survive_being_written_down() -> None:
    version = DeletedVersion(KEY, "prices@1", shared=True)
    assert DeletedVersion.from_json(version.as_json()) == version

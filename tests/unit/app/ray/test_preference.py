"""Order in which Ray's request router tries the replicas."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.ray.preference import preferred
from app.ray.transport import Target
from app.scheduling.rendezvous import ranking

NODES = ("a", "b", "c")
VERSION = "f" * 64
ORDER = ranking(VERSION, tuple((node, 4) for node in NODES))


@dataclass(eq=False)
class Replica:
    """Replica as Ray shows it to a request router."""

    routing_stats: dict[str, Any] = field(default_factory=dict)


def order(target: Target, *others: Replica) -> list[list[str]]:
    """Return the order of three replicas, and of others, by node; ``?`` for a node that is not known."""
    replicas = [*others, *(Replica({"node": node, "slots": 4}) for node in NODES)]
    return [[replica.routing_stats.get("node", "?") for replica in rank] for rank in preferred(target, replicas)]


@given(st.none() | st.text("0123456789abcdef", min_size=1), st.none() | st.text("0123456789abcdef-", min_size=1))
def test_targets_round_trip(version: str | None, node_id: str | None) -> None:
    assert Target.parse(str(Target(node_id, version))) == Target(node_id, version)
    assert Target.parse("") == Target()


def test_the_target_is_first_and_the_ranking_follows() -> None:
    target = ORDER[2]
    assert order(Target(target, VERSION)) == [[target], [ORDER[0]], [ORDER[1]]]


def test_a_target_that_has_ended_is_replaced_by_the_ranking() -> None:
    assert order(Target("gone", VERSION)) == [[node] for node in ORDER]
    assert order(Target("gone")) == [list(NODES)]


def test_a_request_without_a_version_takes_any_other_replica() -> None:
    assert order(Target("b")) == [["b"], ["a", "c"]]
    assert order(Target()) == [list(NODES)]


def test_replicas_not_known_yet_or_without_slots_come_last() -> None:
    new, slotless = Replica(), Replica({"node": "d", "slots": 0})
    assert order(Target(None, VERSION), new, slotless) == [*([node] for node in ORDER), ["?", "d"]]
    assert order(Target("d", VERSION), slotless)[0] == ["d"]
    assert preferred(Target("a", VERSION), [new]) == [[new]]
    assert preferred(Target("a", VERSION), []) == []

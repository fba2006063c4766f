"""Rivals of the routing rule decide as their originals do."""

from collections import Counter
from math import inf

from app.lab.simulator.policies import LeastLoaded, LlmD, Observation, Policy, PowerOfTwo, RoundRobin, Tenora
from app.lab.simulator.workload import Arrival
from app.scheduling.replica_report import ReplicaReport

ARRIVAL = Arrival(0.0, 0, 1, 10, 10, inf, inf)


def replica(
    node_id: str,
    *,
    resident: str = "",
    running: str = "",
    waiting: str = "",
    queue: int = 0,
    share: float = 0.0,
    slots: int = 2,
) -> Observation:
    """Observation with versions of one letter."""
    return Observation(
        ReplicaReport(node_id, slots, resident=frozenset(resident)),
        waiting=queue,
        running=share,
        running_versions=frozenset(running),
        waiting_versions=frozenset(waiting),
    )


def sent(policy: Policy, version: str | None, count: int = 1) -> list[str]:
    return [policy.route(version, ARRIVAL).node_id for _ in range(count)]


def observing(policy: Policy, *replicas: Observation) -> Policy:
    policy.observe(replicas, 0.0)
    return policy


def test_round_robin_takes_turns() -> None:
    policy = observing(RoundRobin(1), *(replica(node_id) for node_id in "abc"))
    assert sent(policy, "v", 5) == list("abcab")


def test_least_loaded_counts_requests_in_flight() -> None:
    policy = observing(LeastLoaded(1), *(replica(node_id) for node_id in "abc"))
    routes = [policy.route("v", ARRIVAL) for _ in range(6)]
    assert Counter(route.node_id for route in routes) == {"a": 2, "b": 2, "c": 2}
    policy.finish(routes[0])
    assert sent(policy, "v") == [routes[0].node_id]


def test_power_of_two_prefers_replicas_with_the_model() -> None:
    policy = observing(PowerOfTwo(1), replica("a"), replica("b", resident="v"), replica("c"))
    assert set(sent(policy, "v", 20)) == {"b"}


def test_power_of_two_sends_a_new_model_where_the_fewest_are() -> None:
    policy = observing(PowerOfTwo(1), replica("a", resident="xy"), replica("b", resident="x"), replica("c"))
    assert set(sent(policy, "v", 3)) == {"c"}
    # Further requests follow the first one, until a replica reports the model.
    policy.observe([replica("a"), replica("b", resident="x"), replica("c", resident="x")], 0.1)
    assert sent(policy, "v") == ["c"]
    policy.observe([replica("a"), replica("b", resident="v"), replica("c")], 0.2)
    assert sent(policy, "v") == ["b"]


def test_power_of_two_balances_the_base_model() -> None:
    policy = observing(PowerOfTwo(1), *(replica(node_id) for node_id in "ab"))
    assert Counter(sent(policy, None, 10)) == {"a": 5, "b": 5}


def test_llm_ds_tiers_are_active_then_room_then_waiting() -> None:
    active, room = replica("active", running="v"), replica("room", running="x", resident="v")
    waiting, other = replica("waiting", running="xy", waiting="v"), replica("other", running="xy")
    assert sent(observing(LlmD(1), other, waiting, room, active), "v") == ["active"]
    assert sent(observing(LlmD(1), other, waiting, room), "v") == ["room"]
    assert sent(observing(LlmD(1), other, waiting), "v") == ["waiting"]


def test_llm_d_weighs_queues_and_running_requests_too() -> None:
    busy, idle = replica("busy", running="v", queue=5, share=1.0), replica("idle", running="xy")
    assert sent(observing(LlmD(1), busy, idle), "v") == ["idle"]
    assert sent(observing(LlmD(1), replica("busy", share=0.9), replica("idle", share=0.1)), None) == ["idle"]


def test_tenora_routes_by_hash_and_gives_loads_back() -> None:
    policy = observing(Tenora(1), *(replica(node_id, slots=16) for node_id in "abcd"))
    nodes = set()
    for _ in range(10):
        route = policy.route("v", ARRIVAL)
        nodes.add(route.node_id)
        policy.finish(route)
    assert len(nodes) == 1

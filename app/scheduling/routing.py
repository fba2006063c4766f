"""Routing of requests to engine replicas: rendezvous hashing with bounded loads and replica sets sized by load."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from app.scheduling.rendezvous import Fleet, ranking
from app.scheduling.replica_report import ReplicaReport

#: Bound of a replica's load in requests: LOAD_FACTOR x mean + LOAD_SLACK.
LOAD_FACTOR, LOAD_SLACK = 1.25, 2

#: Age in seconds above which a report is not used.
STALE_S = 3.0

#: Seconds after which a replica set shrinks, from the last time at which it needed its size.
COOLDOWN_S = 30.0


class NoReplica(Exception):
    """No replica can serve the request now."""


@dataclass(frozen=True, slots=True)
class Route:
    """Decision for one request.

    Attributes:
        node_id: replica that gets the request.
        version: content digest of the version, None for the base model.
        wait_s: expected wait for the first step, None if the replica's report is stale.
    """

    node_id: str
    version: str | None
    wait_s: float | None


@dataclass(slots=True)
class _Replica:
    """Replica as one gateway knows it.

    Attributes:
        heard_at: time of the report.
        own: requests of this gateway in flight.
        others: requests of other gateways in flight, from the report.
        sent_tokens: expected tokens of requests that this gateway sent after the report.
    """

    report: ReplicaReport
    heard_at: float
    own: int = 0
    others: int = 0
    sent_tokens: float = 0.0

    @property
    def load(self) -> int:
        return self.own + self.others

    def wait_s(self, version: str | None) -> float:
        """Return the expected wait by the last report."""
        report, queued = self.report, self.report.queued_tokens + self.sent_tokens
        queue_s = queued / report.tokens_per_s if report.tokens_per_s else 0.0
        return queue_s if version is None else queue_s + report.cold_cost_s(version)


class Router:
    """Choose a replica for each request of one gateway, from the replicas' reports.

    - Each version has a ranking of the replicas by weighted rendezvous hashing, so its requests meet in few of them.
    - It is served by the first replicas of its ranking, as many as its load needs. The set grows at once, and shrinks
      after a cooldown. A pin sets a minimum. A replica that has the version in a slot belongs to the set too.
    - Within the set the least expected wait wins: queued tokens over the service rate, plus the cost of a cold adapter.
    - No replica gets a request beyond ``LOAD_FACTOR`` x mean load + ``LOAD_SLACK``. The next of the ranking gets it.
    - Replicas that would answer after the deadline are passed over. If all would, the least wait wins, and the queue of
      that replica refuses the request.
    - Without a recent report only hash and load decide.
    - Requests for the base model go to the least loaded replica.

    The clock may be any clock in seconds, the same for all calls.
    """

    def __init__(self, *, cooldown_s: float = COOLDOWN_S, stale_s: float = STALE_S) -> None:
        self._cooldown_s, self._stale_s = cooldown_s, stale_s
        self._replicas: dict[str, _Replica] = {}
        self._fleet: Fleet = ()
        self._pins: dict[str, int] = {}
        #: Requests of this gateway in flight: all of them, and those of each version.
        self._unfinished = 0
        self._in_flight: Counter[str] = Counter()
        #: Size of each replica set above 1, and the last time at which it was needed.
        self._sets: dict[str, tuple[int, float]] = {}

    def report(self, report: ReplicaReport, now: float) -> None:
        """Add a replica, or update its state."""
        replica = self._replicas.setdefault(report.node_id, _Replica(report, now))
        replica.report, replica.heard_at, replica.sent_tokens = report, now, 0.0
        replica.others = max(0, report.in_flight - replica.own)
        self._refresh()
        self._sets = {version: kept for version, kept in self._sets.items() if self._is_kept(kept[1], now)}

    def remove(self, node_id: str) -> None:
        """Remove a replica that has left; unknown ones are ignored."""
        self._replicas.pop(node_id, None)
        self._refresh()

    def pin(self, copies: Mapping[str, int]) -> None:
        """Set the pinned versions and the number of replicas of each, which replaces all earlier pins."""
        self._pins = dict(copies)

    def load(self, node_id: str) -> int:
        """Return the requests in flight at a replica, 0 for an unknown one."""
        return self._replicas[node_id].load if node_id in self._replicas else 0

    def replica_set(self, version: str) -> tuple[str, ...]:
        """Return the replicas that the version's load and pin needed at its last request."""
        size, _ = self._sets.get(version, (1, 0.0))
        return ranking(version, self._fleet)[: max(size, self._pins.get(version, 1))]

    def route(
        self,
        version: str | None,
        *,
        now: float,
        tokens: float = 0.0,
        deadline: float | None = None,
        avoid: Collection[str] = (),
    ) -> Route:
        """Choose a replica and count the request as in flight there, until :meth:`finish`.

        Args:
            version: content digest of the version, None for the base model.
            tokens: expected weighted tokens.
            deadline: latest time of the first token.
            avoid: replicas that failed this request before.

        Raises:
            NoReplica: no replica is ready, or the request needs a slot and none of them has any.
            ValueError: the number of tokens is negative or not finite.
        """
        if not 0 <= tokens < inf:
            raise ValueError(f"tokens is {tokens}; it must be 0 or more and finite.")
        ready = self._ready(version, avoid)
        if version is None:
            ready.sort(key=lambda replica: replica.load)
        loads = [replica.own + replica.others for replica in ready]
        total = 1 + sum(loads)
        bound = LOAD_FACTOR * total / len(ready) + LOAD_SLACK
        size = 0 if version is None else self._set_size(version, total, bound, now)
        members: list[_Replica] = []
        others: list[_Replica] = []
        for rank, (replica, load) in enumerate(zip(ready, loads, strict=True)):
            if load + 1 <= bound:
                (members if rank < size or self._holds(replica, version, now) else others).append(replica)
        replica = self._choose(members, others, version, now, inf if deadline is None else deadline)
        return self._send(replica, version, tokens, now)

    def move(self, route: Route, node_id: str) -> Route:
        """Count a request at another replica than the chosen one. Use the new route from then on."""
        if (replica := self._replicas.get(route.node_id)) is not None:
            replica.own = max(0, replica.own - 1)
        if (replica := self._replicas.get(node_id)) is not None:
            replica.own += 1
        return replace(route, node_id=node_id)

    def finish(self, route: Route) -> None:
        """Record the end of a request, answered or not. Call it once for each route."""
        self._unfinished = max(0, self._unfinished - 1)
        if (replica := self._replicas.get(route.node_id)) is not None:
            replica.own = max(0, replica.own - 1)
        if route.version is not None:
            self._in_flight[route.version] -= 1
            if self._in_flight[route.version] <= 0:
                del self._in_flight[route.version]

    def _refresh(self) -> None:
        self._fleet = tuple(sorted((node_id, replica.report.slots) for node_id, replica in self._replicas.items()))

    def _ready(self, version: str | None, avoid: Collection[str]) -> list[_Replica]:
        """Return the replicas that can serve a request, in the order of their ranking."""
        order = [node_id for node_id, _ in self._fleet] if version is None else ranking(version, self._fleet)
        able = [self._replicas[node_id] for node_id in order if node_id not in avoid]
        if ready := [replica for replica in able if replica.report.ready]:
            return ready
        if avoid:
            raise NoReplica("No engine replica is ready that has not failed this request. Retry in a few seconds.")
        if any(replica.report.ready for replica in self._replicas.values()):
            raise NoReplica("No ready engine replica has LoRA slots. Set TENORA_ENGINE__MAX_LORAS to 1 or more.")
        raise NoReplica("No engine replica is ready. Retry when one has started.")

    def _set_size(self, version: str, total: int, bound: float, now: float) -> int:
        """Update and return the number of replicas for a version: as many as its load needs within the bound.

        The version's part of this gateway's requests stands for its part of all requests.
        """
        in_flight = (1 + self._in_flight[version]) * max(1.0, total / (1 + self._unfinished))
        need, (size, since) = ceil(in_flight / bound), self._sets.get(version, (1, now))
        if need >= size or not self._is_kept(since, now):
            size, since = need, now
        if size > 1:
            self._sets[version] = size, since
        else:
            self._sets.pop(version, None)
        return max(size, self._pins.get(version, 1))

    def _is_kept(self, since: float, now: float) -> bool:
        return abs(now - since) < self._cooldown_s

    def _choose(
        self, members: Sequence[_Replica], others: Sequence[_Replica], version: str | None, now: float, deadline: float
    ) -> _Replica:
        """Choose among replicas below the load bound, both parts in the order of their ranking."""
        waits_s = [self._wait_s(replica, version, now) for replica in members]
        timely = [n for n, wait_s in enumerate(waits_s) if wait_s is None or now + wait_s <= deadline]
        if timely and any(waits_s[n] is None for n in timely):
            return members[timely[0]]
        if timely:
            return members[min(timely, key=lambda n: (waits_s[n], members[n].load))]
        for replica in others:
            wait_s = self._wait_s(replica, version, now)
            if wait_s is None or now + wait_s <= deadline:
                return replica
        return min([*members, *others], key=lambda replica: replica.wait_s(version))

    def _wait_s(self, replica: _Replica, version: str | None, now: float) -> float | None:
        return replica.wait_s(version) if self._is_fresh(replica, now) else None

    def _holds(self, replica: _Replica, version: str | None, now: float) -> bool:
        return version in replica.report.resident and self._is_fresh(replica, now)

    def _is_fresh(self, replica: _Replica, now: float) -> bool:
        # A clock that goes back makes all reports old.
        return abs(now - replica.heard_at) <= self._stale_s

    def _send(self, replica: _Replica, version: str | None, tokens: float, now: float) -> Route:
        route = Route(replica.report.node_id, version, self._wait_s(replica, version, now))
        self._unfinished += 1
        replica.own += 1
        replica.sent_tokens += tokens
        if version is not None:
            self._in_flight[version] += 1
        return route

"""Request prediction: which versions a tenant is likely to request next. Pure. The caller passes the time.

A prediction uses the tenant's own requests alone. Each tenant has a short list of versions with decayed use counts, as
in LRFU (Lee et al. 2001). Each version has counts of the versions that followed it within a minute. That is a
first-order Markov predictor, as in web prefetching (Padmanabhan and Mogul 1996). Tenants share only the memory limit.
"""

import math
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

#: Weight of a version's share of all uses, in followers: the strength of a Dirichlet prior.
_PRIOR = 8.0
#: Follower counts are halved beyond this sum, so that new habits replace old ones.
_MOST_COUNTED = 64.0


@dataclass(slots=True)
class _Uses:
    """Use counts of one version.

    Attributes:
        count: uses, decayed to the time ``at``.
        next: version id -> how often it followed.
    """

    count: float
    at: float
    next: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Habits:
    """History of one tenant: its versions, its last version, and the time of that request."""

    versions: dict[int, _Uses] = field(default_factory=dict)
    last: int | None = None
    last_at: float = -math.inf


class Predictor:
    """Request predictor with bounded memory.

    The limits hold per tenant, so no tenant can grow its memory or displace another tenant's history. Times are seconds
    of a monotonic clock.

    Args:
        tenants: most tenants; the least recently active one is evicted.
        versions: most versions per tenant; the least used one is evicted.
        followers: most followers per version.
        window_s: longest gap between a request and its follower, in seconds.
        half_life_s: half-life of a use, in seconds.
    """

    def __init__(
        self,
        *,
        tenants: int = 10_000,
        versions: int = 16,
        followers: int = 4,
        window_s: float = 60.0,
        half_life_s: float = 3600.0,
    ) -> None:
        self._most_tenants, self._most_versions, self._most_followers = tenants, versions, followers
        self._window_s, self._half_life_s = window_s, half_life_s
        self._tenants: OrderedDict[str, _Habits] = OrderedDict()

    def seen(self, tenant: str, version_id: int, now: float) -> None:
        """Record that a request of the tenant named this version. Cheap, because it runs for every request."""
        habits = self._tenants.get(tenant)
        if habits is None:
            habits = self._tenants[tenant] = _Habits()
            if len(self._tenants) > self._most_tenants:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
        self._use(habits, version_id, now)
        if habits.last is not None and habits.last != version_id and now - habits.last_at <= self._window_s:
            self._follow(habits.versions[habits.last].next, version_id)
        habits.last, habits.last_at = version_id, now

    def likely(self, tenant: str, now: float, *, most: int) -> list[int]:
        """Return the versions that the tenant is likely to request next, likeliest first.

        The version of its last request is left out.
        """
        habits = self._tenants.get(tenant)
        if habits is None:
            return []
        counts = {version_id: self._decayed(uses, now) for version_id, uses in habits.versions.items()}
        scale = _PRIOR / max(sum(counts.values()), 1e-9)
        scores = {version_id: count * scale for version_id, count in counts.items()}
        if habits.last is not None and now - habits.last_at <= self._window_s:
            for version_id, count in habits.versions[habits.last].next.items():
                scores[version_id] += count
        if habits.last is not None:
            del scores[habits.last]
        return sorted(scores, key=lambda version_id: -scores[version_id])[:most]

    def forget(self, version_ids: Collection[int]) -> None:
        """Remove every trace of deleted versions."""
        for habits in self._tenants.values():
            for version_id in version_ids:
                if version_id in habits.versions:
                    self._drop(habits, version_id)

    def _use(self, habits: _Habits, version_id: int, now: float) -> None:
        uses = habits.versions.get(version_id)
        if uses is not None:
            uses.count, uses.at = 1 + self._decayed(uses, now), now
            return
        if len(habits.versions) >= self._most_versions:
            # Keep the last version, because the new one is about to be counted as its follower.
            others = (other for other in habits.versions if other != habits.last)
            self._drop(habits, min(others, key=lambda other: self._decayed(habits.versions[other], now)))
        habits.versions[version_id] = _Uses(1.0, now)

    def _follow(self, following: dict[int, float], version_id: int) -> None:
        following[version_id] = following.get(version_id, 0.0) + 1
        if len(following) > self._most_followers:
            others = (other for other in following if other != version_id)
            del following[min(others, key=following.__getitem__)]
        if sum(following.values()) > _MOST_COUNTED:
            for other in following:
                following[other] /= 2

    def _decayed(self, uses: _Uses, now: float) -> float:
        return uses.count * 2 ** ((uses.at - now) / self._half_life_s)

    @staticmethod
    def _drop(habits: _Habits, version_id: int) -> None:
        del habits.versions[version_id]
        for uses in habits.versions.values():
            uses.next.pop(version_id, None)
        if habits.last == version_id:
            habits.last = None

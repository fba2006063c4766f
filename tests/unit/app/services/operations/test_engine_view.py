"""A tenant's engine view does not depend on the load of other tenants."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.database.residency import KnownVersion
from app.engine.status import VersionResidency
from app.services.operations.engine_view import OwnVersion, OwnView, own_view
from tests.support.overviews import Place, overview, queue, residency

PRICES, MARGINS, SHARED_IN = 1, 2, 3
KNOWN = {
    PRICES: KnownVersion("prices@1", shared=False),
    MARGINS: KnownVersion("margins@4", shared=False),
    SHARED_IN: KnownVersion("retail/quotes@2", shared=True),
}
OWN = (
    residency(PRICES, "disk"),
    residency(MARGINS, "slot", running=2, waiting=1),
    residency(SHARED_IN, "host", running=7, waiting=9),
)
NUMBERS = st.integers(0, 50)
PLACES = st.sampled_from(("slot", "host", "disk", "loading"))
QUEUES = st.builds(queue, st.sampled_from(("retail", "pricing2", "")), running=NUMBERS, waiting=NUMBERS)


def of(version_id: int, tier: Place, running: int, waiting: int, wait: float) -> VersionResidency:
    return residency(version_id, tier, running=running, waiting=waiting, oldest_wait_s=wait)


OTHERS = st.builds(of, st.integers(4, 500), PLACES, NUMBERS, NUMBERS, st.floats(0, 99))


def test_own_versions_with_their_counts_and_shared_ones_without() -> None:
    seen = own_view(overview(*OWN, tenants=(queue("pricing", running=3, waiting=4),)), "pricing", KNOWN, 10)
    assert seen == OwnView(
        running=3,
        waiting=4,
        total=3,
        versions=(
            OwnVersion("margins@4", "slot", 2, 1),
            OwnVersion("retail/quotes@2", "host", None, None),
            OwnVersion("prices@1", "disk", 0, 0),
        ),
    )


def test_who_has_nothing_there_sees_nothing() -> None:
    busy = overview(*OWN, tenants=(queue("retail", running=9),))
    assert own_view(busy, "pricing", {}, 10) == OwnView(0, 0, 0, ())


@given(st.integers(1, 5), st.lists(OTHERS, max_size=20), st.lists(QUEUES, max_size=3), NUMBERS, st.booleans())
def test_nothing_changes_with_others_load(
    limit: int, others: list[VersionResidency], queues: list[object], busy: int, first: bool
) -> None:
    own = queue("pricing", running=3, waiting=4)
    quiet = own_view(overview(*OWN, tenants=(own,)), "pricing", KNOWN, limit)
    # Includes other tenants' requests for the shared version.
    shared = replace(OWN[2], running=busy, waiting=busy, leases=busy, draining=first)
    versions = (*others, *OWN[:2], shared) if first else (shared, *OWN[:2], *others)
    loud = overview(*versions, tenants=(*queues, own), pinned=frozenset({400}))  # type: ignore[arg-type]
    assert own_view(loud, "pricing", KNOWN, limit) == quiet


@given(st.lists(OTHERS, max_size=20, unique_by=lambda version: version.version_id))
def test_tenants_see_disjoint_things_that_make_up_the_whole(versions: list[VersionResidency]) -> None:
    even, odd = (
        {found.version_id: KnownVersion(f"a@{found.version_id}", shared=False) for found in versions[start::2]}
        for start in (0, 1)
    )
    views = [own_view(overview(*versions), "any", mine, 1000) for mine in (even, odd)]
    names = [{version.name for version in view.versions} for view in views]
    assert not names[0] & names[1]
    assert names[0] | names[1] == {f"a@{version.version_id}" for version in versions}

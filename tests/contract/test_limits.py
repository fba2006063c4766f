"""Limits of tenants and keys, counted in memory: set, enforced, settled, and restored after a restart."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from adapters.identity import ModelName
from app.domain.access import Caller, Scope
from app.domain.adapters import ResolvedVersion
from app.domain.errors import BudgetExceeded, InvalidRequest, LimitExceeded, NotFound, TenoraError
from app.domain.limits.limiter import RateLimitStatus
from app.domain.limits.limits import UNLIMITED, Limits
from app.domain.restrictions import UNRESTRICTED, Restrictions
from app.services.catalog.shares import SharingService
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.services.usage.meter import Meter
from tests.support.limit_requests import Sizes, answered, caller_of, request, service
from tests.support.registry import Node
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)

OWNERS = "would be above the limit that the adapter's owner has set."
WAIT = "Wait for the time in Retry-After."
NEVER = "This request can never fit. Ask for fewer tokens."


async def test_limits_are_kept_changed_lifted_and_rotated(node: Node) -> None:
    assert (await node.tenants.create("pricing", actor="cli")).limits == UNLIMITED
    both = {"requests_per_minute": 60, "tokens_per_day": 10**12}
    changed = await node.tenants.update("pricing", limits=both, actor="cli")
    assert changed.limits == Limits(requests_per_minute=60, tokens_per_day=10**12)
    new = await node.keys.create(
        "pricing", name="app", restrictions={"limits": {"concurrent_requests": 2}}, actor="cli"
    )
    caller = await node.keys.authenticate(new.text)
    assert (caller.limits, caller.restrictions.limits) == (changed.limits, Limits(concurrent_requests=2))
    await node.keys.restrict("pricing", new.key.id, {"limits": {"tokens_per_minute": 5}}, actor="cli")
    await node.tenants.update("pricing", limits={"tokens_per_day": None}, actor="cli")
    caller = await node.keys.authenticate(new.text)
    assert caller.limits == Limits(requests_per_minute=60)
    assert caller.restrictions.limits == Limits(concurrent_requests=2, tokens_per_minute=5)
    rotated = await node.keys.rotate("pricing", new.key.id, actor="cli")
    assert rotated.key.restrictions == caller.restrictions
    lifted = await node.keys.restrict("pricing", new.key.id, {"limits": None}, actor="cli")
    assert lifted.restrictions == UNRESTRICTED
    assert lifted in (await node.keys.list("pricing")).data
    with pytest.raises(NotFound):
        await node.keys.restrict(None, new.key.id, {}, actor="cli")


@pytest.mark.parametrize(
    ("limits", "param"),
    [
        ([1], "limits"),
        ({"requests": 1}, "limits"),
        ({"tokens_per_day": -1}, "limits.tokens_per_day"),
        ({"tokens_per_day": True}, "limits.tokens_per_day"),
        ({"tokens_per_day": 2**63}, "limits.tokens_per_day"),
    ],
)
async def test_limits_that_make_no_sense_are_named(node: Node, limits: object, param: str) -> None:
    await node.tenants.create("pricing", actor="cli")
    for call in (
        node.tenants.update("pricing", limits=limits, actor="cli"),
        node.keys.create("pricing", name="app", restrictions={"limits": limits}, actor="cli"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await call
        assert refused.value.param == param


async def test_a_key_is_bound_by_its_own_limits_and_its_tenants(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.tenants.update("pricing", limits={"requests_per_minute": 3}, actor="cli")
    one, two = await caller_of(node, "pricing", requests_per_minute=2), await caller_of(node, "pricing")
    limits = service(node)
    for number, caller in enumerate((one, one, two)):
        await limits.admit(caller, request(str(number)))
    for caller, whose in ((one, "key|tenant"), (two, "tenant")):
        with pytest.raises(LimitExceeded, match=f"requests_per_minute would be [34] .* of this ({whose})") as refused:
            await limits.admit(caller, request("more"))
        assert refused.value.retry_after in {60, 61}
        status = refused.value.rate_limits.requests
        assert status is not None
        assert status.remaining == 0
    node.clock.advance(61)
    await limits.admit(one, request("later"))


async def test_another_tenant_feels_nothing(node: Node) -> None:
    for slug in ("pricing", "retail"):
        await node.tenants.create(slug, actor="cli")
        await node.tenants.update(slug, limits={"concurrent_requests": 1, "tokens_per_minute": 10}, actor="cli")
    limits = service(node, Sizes(10))
    greedy, quiet = await caller_of(node, "pricing"), await caller_of(node, "retail")
    await limits.admit(greedy, request("1"))
    for _ in range(9):
        with pytest.raises(LimitExceeded):
            await limits.admit(greedy, request("2"))
    permit = await limits.admit(quiet, request("3"))
    assert permit.rate_limits.tokens is not None
    assert permit.rate_limits.tokens.remaining == 0


async def version_of(node: Node, caller: Caller, name: ModelName) -> ResolvedVersion:
    return await node.adapters.resolve(caller.tenant_id or 0, name)


async def shared_adapter(node: Node) -> None:
    """Share ``prices`` of ``pricing`` with ``retail``."""
    for slug in ("pricing", "retail"):
        await node.tenants.create(slug, actor="cli")
    await node.publish("pricing", "prices", "1")
    await SharingService(node.database).share("pricing", "prices", "retail", actor="cli", must_exist=True)


async def test_an_adapters_limits_bind_all_its_callers_together(node: Node) -> None:
    await shared_adapter(node)
    limited = await node.adapters.limit("pricing", "prices", {"concurrent_requests": 2}, actor="cli")
    assert limited == await node.adapters.get_adapter("pricing", "prices")
    assert limited.limits == Limits(concurrent_requests=2)
    owner, guest = await caller_of(node, "pricing"), await caller_of(node, "retail")
    own = await version_of(node, owner, ModelName("prices"))
    shared = await version_of(node, guest, ModelName("prices", owner="pricing"))
    assert own.limits == shared.limits == limited.limits
    limits = service(node)
    permits = [await limits.admit(owner, request("1"), own), await limits.admit(guest, request("2"), shared)]
    for caller, version in ((owner, own), (guest, shared)):
        with pytest.raises(LimitExceeded, match="concurrent_requests") as refused:
            await limits.admit(caller, request("3"), version)
        assert refused.value.rate_limits == RateLimitStatus(None, None)
    await limits.admit(owner, request("4"))
    limits.settle(permits[1], 0)
    await limits.admit(guest, request("5"), shared)


async def test_a_guest_learns_no_figure_of_an_adapters_use(node: Node) -> None:
    await shared_adapter(node)
    sizes, guest = Sizes(), await caller_of(node, "retail")
    limits = service(node, sizes)
    said = set()
    for used in (3, 5, 9):
        sizes.most = used
        owner = await caller_of(node, "pricing", tokens_per_month=10**9)
        await node.adapters.limit("pricing", "prices", None, actor="cli")
        await limits.admit(owner, request(str(used)), await version_of(node, owner, ModelName("prices")))
        node.clock.advance(used)
        sizes.most = 10
        for name in ("tokens_per_minute", "tokens_per_day"):
            for allowed, error in ((10, (LimitExceeded, BudgetExceeded)), (9, InvalidRequest)):
                patch = dict.fromkeys(("tokens_per_minute", "tokens_per_day")) | {name: allowed}
                await node.adapters.limit("pricing", "prices", patch, actor="cli")
                shared = await version_of(node, guest, ModelName("prices", owner="pricing"))
                with pytest.raises(error) as refused:
                    await limits.admit(guest, request("x"), shared)
                retry_after = refused.value.retry_after if name == "tokens_per_minute" else None
                said.add((str(refused.value), retry_after))
    assert said == {
        (f"tokens_per_minute {OWNERS} {WAIT}", 60),
        (f"tokens_per_day {OWNERS} {WAIT}", None),
        (f"tokens_per_minute {OWNERS} {NEVER}", None),
        (f"tokens_per_day {OWNERS} {NEVER}", None),
    }


async def test_limits_of_an_adapter_are_known_again_after_a_restart(node: Node, tmp_path) -> None:
    await shared_adapter(node)
    engine, sizes = NoEngine(), Sizes(7)
    owner, guest = await caller_of(node, "pricing"), await caller_of(node, "retail")
    ledger = Ledger(node.database, Journal(tmp_path / "usage"))
    await ledger.open()
    limits = service(node, sizes)
    meter = Meter(ledger, limits, clock=node.clock, monotonic=node.clock.monotonic)
    for number, (caller, name) in enumerate(
        [(owner, ModelName("prices")), (guest, ModelName("prices", owner="pricing")), (owner, None)]
    ):
        version = await version_of(node, caller, name) if name else None
        await answered(meter, limits, caller, engine, request(f"{number}" * 32), version)
    await ledger.close()
    again = service(node, sizes)
    await again.accounts.restore()
    for allowed in ({"tokens_per_minute": 20}, {"tokens_per_month": 20, "tokens_per_minute": None}):
        await node.adapters.limit("pricing", "prices", allowed, actor="cli")
        version = await version_of(node, owner, ModelName("prices"))
        with pytest.raises(
            (LimitExceeded, BudgetExceeded), match="would be 21 with this request; the limit of this adapter is 20"
        ):
            await again.admit(owner, request("x"), version)
    await node.adapters.limit("pricing", "prices", {"tokens_per_month": 21}, actor="cli")
    await again.admit(owner, request("x"), await version_of(node, owner, ModelName("prices")))


async def test_a_request_that_can_never_fit_is_a_wrong_one(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    for name in ("tokens_per_request", "tokens_per_minute", "tokens_per_day"):
        caller = await caller_of(node, "pricing", **{name: 100})
        with pytest.raises(
            InvalidRequest, match=f"{name} would be 101 with this request; the limit of this key is 100"
        ):
            await service(node, Sizes(101)).admit(caller, request("1"))


async def test_tokens_are_counted_ahead_only_with_a_token_limit(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    sizes = Sizes()
    limits = service(node, sizes)
    await limits.admit(await caller_of(node, "pricing", requests_per_minute=9, concurrent_requests=9), request("1"))
    assert sizes.counted == 0
    await limits.admit(await caller_of(node, "pricing", tokens_per_month=9), request("2"))
    assert sizes.counted == 1


async def test_a_request_known_to_be_refused_needs_no_count(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "1")
    await node.adapters.limit("pricing", "prices", {"requests_per_minute": 1}, actor="cli")
    sizes, caller = Sizes(), await caller_of(node, "pricing", tokens_per_month=90)
    version, limits = await version_of(node, caller, ModelName("prices")), service(node, sizes)
    limits.refuse(caller, version)
    await limits.admit(caller, request("1"), version)
    for _ in range(3):
        limits.refuse(caller)
        with pytest.raises(
            LimitExceeded, match="requests_per_minute would be 2 with this request; the limit of this adapter is 1"
        ):
            limits.refuse(caller, version)
    assert sizes.counted == 1
    assert limits.refused["requests_per_minute"] == 3


async def test_unused_tokens_return_and_a_restart_keeps_the_rest(node: Node, tmp_path) -> None:
    await node.tenants.create("pricing", actor="cli")
    engine, sizes = NoEngine(), Sizes(20)
    caller = await caller_of(node, "pricing", tokens_per_minute=70, tokens_per_month=98, concurrent_requests=5)
    ledger = Ledger(node.database, Journal(tmp_path / "usage"))
    await ledger.open()
    limits = service(node, sizes)
    meter = Meter(ledger, limits, clock=node.clock, monotonic=node.clock.monotonic)
    for number in range(8):
        await answered(meter, limits, caller, engine, request(f"{number}" * 32))
    # 56 tokens are used, so an estimate of 20 more exceeds the limit.
    with pytest.raises(LimitExceeded, match="tokens_per_minute would be 76"):
        await limits.admit(caller, request("8"))
    await ledger.ship()
    again = service(node, sizes)
    await again.accounts.restore()
    with pytest.raises(LimitExceeded, match="tokens_per_minute would be 76"):
        await again.admit(caller, request("8"))
    node.clock.advance(62)
    meter = Meter(ledger, again, clock=node.clock, monotonic=node.clock.monotonic)
    for letter in "ab":
        await answered(meter, again, caller, engine, request(letter * 32))
    await ledger.ship()
    third = service(node, sizes)
    await third.accounts.restore()
    for after in (again, third):
        sizes.most = 28
        permit = await after.admit(caller, request("c"))
        after.settle(permit, 0)
        sizes.most = 29
        with pytest.raises(BudgetExceeded, match="tokens_per_month would be 99"):
            await after.admit(caller, request("d"))
    node.clock.advance(timedelta(days=31).total_seconds())
    await third.admit(caller, request("e"))
    await ledger.close()


@pytest.mark.parametrize("outcome", [InvalidRequest("no"), asyncio.CancelledError()])
async def test_a_request_that_fails_gives_its_place_back(node: Node, tmp_path, outcome) -> None:
    await node.tenants.create("pricing", actor="cli")
    caller = await caller_of(node, "pricing", concurrent_requests=1)
    engine, ledger = NoEngine(), Ledger(node.database, Journal(tmp_path / "usage"))
    limits = service(node)
    meter = Meter(ledger, limits)

    async def failing() -> dict[str, object]:
        raise outcome

    for number in range(3):
        permit = await limits.admit(caller, request(str(number)))
        with pytest.raises(type(outcome)):
            await meter.metered(caller, engine.begin(request(str(number))), failing(), permit=permit)
        await meter.close()


async def test_one_thousand_requests_at_once_get_exactly_what_there_is(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    caller = await caller_of(node, "pricing", requests_per_minute=333, tokens_per_minute=10**6)
    limits = service(node, Sizes(10))
    outcomes = await asyncio.gather(
        *(limits.admit(caller, request(str(number))) for number in range(1000)), return_exceptions=True
    )
    assert sum(not isinstance(one, TenoraError) for one in outcomes) == 333
    other = replace(caller, key_id="another", restrictions=Restrictions(Limits(tokens_per_minute=55)))
    outcomes = await asyncio.gather(
        *(limits.admit(other, request(str(number))) for number in range(1000)), return_exceptions=True
    )
    assert sum(not isinstance(one, TenoraError) for one in outcomes) == 5
    assert Scope.INFERENCE in other.scopes

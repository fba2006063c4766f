"""Limits shared by several servers: never over-admitted, nearly fully used, and intact after a crash."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.database import limit_accounts as limit_accounts_repo
from app.database import usage
from app.database.session import Database
from app.database.tables import limit_accounts, limit_grants, limit_reclaimed
from app.domain.batches import LineResult
from app.domain.errors import RegistryUnavailable
from app.domain.limits.limiter import LimitBreach, Reservation, Subject
from app.domain.limits.limits import Limits
from app.domain.limits.remaining import Left
from app.domain.usage import UsageEntry
from app.services.limits.accounts import Health
from app.services.limits.late_settlement import count_late
from app.services.limits.memory import MemoryAccounts
from app.services.limits.shared import LEASE_S, SharedAccounts
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.settings import Settings
from app.wiring.limit_accounts import accounts_of
from tests.support.batches import Owner, inserted, owner
from tests.support.registry import Node, SettableClock
from tests.support.usage_records import record

pytest_plugins = ("tests.support.registry_fixtures",)

TENANT: Subject = ("tenant", "7")
KEY: Subject = ("key", "a")
CLIENTS = 64


@pytest.fixture
def database_kind() -> str:
    """SQLite supports one server only."""
    return "postgresql"


@pytest.fixture(autouse=True)
def database_time(clock: SettableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Database clock that the test controls."""

    async def moment(_connection: object) -> object:
        return clock()

    monkeypatch.setattr(limit_accounts_repo, "moment", moment)


@pytest.fixture
async def servers(node: Node, other_node: Node, clock: SettableClock) -> tuple[SharedAccounts, SharedAccounts]:
    nodes = ((node, "1" * 32), (other_node, "2" * 32))
    one, other = (SharedAccounts(here.database, name, monotonic=clock.monotonic) for here, name in nodes)
    return one, other


class Clients:
    """Client requests with unique ids, and the reservations that they got."""

    def __init__(self) -> None:
        self.number = 0
        self.reservations: dict[str, Reservation] = {}

    async def ask(self, server: SharedAccounts, limits: Mapping[Subject, Limits], tokens: int = 0) -> bool:
        self.number += 1
        request_id = f"{self.number:032x}"
        decision = await server.take(request_id, limits, tokens)
        if isinstance(decision.outcome, LimitBreach):
            return False
        self.reservations[request_id] = decision.outcome
        return True

    async def ask_all(self, servers: tuple[SharedAccounts, ...], limits: Mapping[Subject, Limits], tokens: int) -> int:
        """Ask concurrently for all clients on all servers; return the number of admitted requests."""
        asked = (self.ask(servers[number % len(servers)], limits, tokens) for number in range(CLIENTS))
        return sum(await asyncio.gather(*asked))

    def settle(self, server: SharedAccounts, request_id: str, tokens: int) -> None:
        server.settle(request_id, self.reservations.pop(request_id), tokens)


async def rows(node: Node) -> tuple[int, int]:
    """Return the number of accounts and of reservations."""
    async with node.database.read() as connection:
        counts = [
            await connection.scalar(select(func.count()).select_from(one)) for one in (limit_accounts, limit_grants)
        ]
    return counts[0] or 0, counts[1] or 0


async def test_two_servers_grant_exactly_what_one_would(node, servers) -> None:
    clients, limits = Clients(), {TENANT: Limits(tokens_per_minute=1000), KEY: Limits(requests_per_minute=90)}
    let_in = [await clients.ask_all(servers, limits, 11) for _ in range(3)]
    assert sum(let_in) == 90
    await clients.ask_all(servers, {TENANT: limits[TENANT]}, 1)
    used = sum(reservation.tokens for reservation in clients.reservations.values())
    assert used == 1000, "90 of 11 tokens, and ten of one"
    assert await rows(node) == (2, 100)


async def test_what_is_given_back_is_had_by_the_other(servers) -> None:
    clients, limits, chance = (
        Clients(),
        {TENANT: Limits(tokens_per_minute=2000, concurrent_requests=20)},
        random.Random(1),
    )
    used, most_running = 0, 0
    for _ in range(30):
        await clients.ask_all(servers, limits, 20)
        most_running = max(most_running, len(clients.reservations))
        for request_id in list(clients.reservations):
            tokens = chance.randint(0, 20)
            used += tokens
            clients.settle(chance.choice(servers), request_id, tokens)
    assert most_running == 20
    assert 1980 <= used <= 2000


async def test_a_server_that_died_gives_back_within_its_lease(node, clock, servers) -> None:
    one, other = servers
    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=5, tokens_per_day=50)}
    assert [await clients.ask(other, limits, 10) for _ in range(6)] == [True] * 5 + [False]
    for _ in range(int(LEASE_S) // 5 - 1):
        clock.advance(5)
        await one.maintain()
        assert not await clients.ask(one, limits, 10)
    clock.advance(11)
    await one.maintain()
    assert [await clients.ask(one, limits, 10) for _ in range(6)] == [True] * 5 + [False]
    # A server that was only slow finds its leases gone and settles nothing twice.
    for request_id in [*clients.reservations][:5]:
        clients.settle(other, request_id, 10)
    await other.close()
    assert not await clients.ask(other, limits, 10)
    assert await rows(node) == (1, 5)


async def test_a_server_that_lives_keeps_its_leases(clock, servers) -> None:
    one, other = servers
    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=1)}
    assert await clients.ask(one, limits)
    for _ in range(40):
        clock.advance(5)
        await one.maintain()
        await other.maintain()
    assert not await clients.ask(other, limits)


async def test_a_server_that_starts_again_gives_back_at_once(node, servers) -> None:
    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=2)}
    assert [await clients.ask(one, limits) for one in (*servers, servers[0])] == [True, True, False]
    again = SharedAccounts(node.database, "1" * 32)
    await again.restore()
    assert [await clients.ask(again, limits) for _ in range(2)] == [True, False]


async def test_an_unsettled_request_counts_by_its_record(node, servers) -> None:
    """A server is killed between record and settlement. Of three requests, the second has a record."""
    clients, limits = Clients(), {TENANT: Limits(tokens_per_month=100, concurrent_requests=4)}
    assert [await clients.ask(servers[0], limits, 30) for _ in range(3)] == [True] * 3
    async with node.database.write() as connection:
        await usage.add(connection, [record(2, 1, at=node.clock())])
    again = SharedAccounts(node.database, "1" * 32)
    await again.restore()
    assert [await clients.ask(again, limits, tokens) for tokens in (100 - 13 + 1, 100 - 13)] == [False, True]
    assert await rows(node) == (1, 1)


async def test_a_record_after_its_returned_reservation_counts_once(node, clock, servers, tmp_path) -> None:
    """A crashed server returns much later with its journal.

    Of three requests, the second has a record.
    """
    clients, limits = Clients(), {TENANT: Limits(tokens_per_month=100, requests_per_minute=9)}
    neighbour: dict[Subject, Limits] = {("tenant", "8"): Limits(tokens_per_month=100)}
    assert [await clients.ask(servers[0], limits, 30) for _ in range(3)] == [True] * 3
    clock.advance(LEASE_S + 1)
    await servers[1].maintain()
    assert [await clients.ask(servers[1], limits, tokens) for tokens in (101, 20)] == [False, True]
    assert await clients.ask(servers[1], neighbour, 7)
    for attempt in range(2):
        ledger = Ledger(node.database, Journal(tmp_path / f"usage-{attempt}"))
        await ledger.open()
        await ledger.keep(UsageEntry(record(2, 1, at=clock())))
        await ledger.close()
    requests, tokens = (await servers[1].left(limits))[TENANT]
    assert (requests.used, tokens.used) == (1, 20 + 13), "the request itself was counted in the minute that it came"
    assert [one.used for one in (await servers[1].left(neighbour))["tenant", "8"]] == [7], "no other tenant used it"
    assert [await clients.ask(servers[1], limits, tokens) for tokens in (100 - 33 + 1, 100 - 33)] == [False, True]
    # A server that was only cut off settles its requests now. This changes nothing.
    for request_id in [*clients.reservations][:3]:
        clients.settle(servers[0], request_id, 10)
    await servers[0].close()
    assert not await clients.ask(servers[0], limits, 1)


async def test_an_account_that_is_made_after_a_late_record_has_it_once(node, clock, servers) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    own: Subject = ("tenant", str(tenant))
    clients, limits = Clients(), {own: Limits(tokens_per_month=100)}
    assert await clients.ask(servers[0], limits, 30)
    clock.advance(LEASE_S + 1)
    await servers[1].maintain()
    assert await rows(node) == (0, 0), "nothing is left of what was not used"
    async with node.database.write() as connection:
        await count_late(connection, await usage.add(connection, [record(1, tenant, at=clock())]))
    assert [await clients.ask(servers[1], limits, tokens) for tokens in (100 - 13 + 1, 100 - 13)] == [False, True]


async def test_a_return_waits_for_records_being_written(node, clock, servers) -> None:
    clients, limits = Clients(), {TENANT: Limits(tokens_per_month=100)}
    assert await clients.ask(servers[0], limits, 30)
    clock.advance(LEASE_S + 1)
    async with node.database.write() as connection:
        # Other transactions cannot see an uncommitted record.
        await count_late(connection, await usage.add(connection, [record(1, 1, at=clock())]))
        maintenance = asyncio.create_task(servers[1].maintain())
        await asyncio.sleep(0.3)
        assert not maintenance.done()
    await maintenance
    assert [await clients.ask(servers[1], limits, tokens) for tokens in (100 - 13 + 1, 100 - 13)] == [False, True]


async def test_what_was_given_back_is_remembered_for_a_month(node, clock, servers) -> None:
    clients, limits = Clients(), {TENANT: Limits(tokens_per_month=100)}
    assert await clients.ask(servers[0], limits, 30)
    remembered = []
    for seconds in (LEASE_S + 1, 32 * 86400, 1):
        clock.advance(seconds)
        await servers[1].maintain()
        async with node.database.read() as connection:
            remembered.append(await connection.scalar(select(func.count()).select_from(limit_reclaimed)))
    assert remembered == [1, 1, 0]


async def test_who_goes_away_while_it_is_decided_has_nothing(node, servers) -> None:
    one, _ = servers
    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=3)}
    asking = [asyncio.create_task(clients.ask(one, limits)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await one.close()
    assert clients.reservations == {}
    assert (await rows(node))[1] == 0
    assert await clients.ask_all(servers, limits, 0) == 3


async def test_a_new_account_begins_with_what_was_used(node, servers) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    used = [record(number, tenant, key_id="k", at=node.clock()) for number in range(3)]
    async with node.database.write() as connection:
        await usage.add(connection, [*used, record(9, tenant + 1, key_id="k2", at=node.clock())])
    clients = Clients()
    own = ("tenant", str(tenant))
    assert not await clients.ask(servers[0], {own: Limits(tokens_per_month=3 * 13 + 9)}, 10)
    assert await clients.ask(servers[1], {own: Limits(tokens_per_month=3 * 13 + 10)}, 10)
    assert not await clients.ask(servers[0], {("key", "k"): Limits(tokens_per_day=3 * 13 + 9)}, 10)


async def test_an_adapters_account_begins_with_all_callers_usage(node, servers) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    version = await node.publish("pricing", "prices", "1")
    adapter = (await node.adapters.get_adapter("pricing", "prices")).id
    of_adapter = [
        record(number, tenant + number, version_id=version.key.version_id, at=node.clock()) for number in range(3)
    ]
    async with node.database.write() as connection:
        await usage.add(connection, [*of_adapter, record(9, tenant, at=node.clock())])
    clients, own = Clients(), ("adapter", str(adapter))
    assert not await clients.ask(servers[0], {own: Limits(tokens_per_day=3 * 13 + 9)}, 10)
    assert await clients.ask(servers[1], {own: Limits(tokens_per_day=3 * 13 + 10)}, 10)
    assert not await clients.ask(servers[0], {own: Limits(tokens_per_day=3 * 13 + 10), KEY: Limits()}, 1)


async def test_what_is_left_is_told_by_every_server(node, clock, servers) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    own: Subject = ("tenant", str(tenant))
    async with node.database.write() as connection:
        await usage.add(connection, [record(1, tenant, at=clock(), cost=9)])
    limits = {own: Limits(requests_per_minute=3, tokens_per_month=50, cost_per_day=20, tokens_per_request=40)}
    # Before it has an account, a subject's usage is the sum of its records.
    assert await servers[1].left(limits) == {
        own: [
            Left("requests_per_minute", 3, 0, 0.0),
            Left("tokens_per_request", 40, None, None),
            Left("tokens_per_month", 50, 13, 30.5 * 86400),
            Left("cost_per_day", 20, 9, 43200),
        ]
    }
    assert await rows(node) == (0, 0)
    clients = Clients()
    assert await clients.ask(servers[0], limits, 30)
    requests, _, tokens, cost = (await servers[1].left(limits))[own]
    assert (requests.used, requests.remaining, tokens.used, tokens.remaining) == (1, 2, 43, 7)
    assert (cost.used, cost.remaining) == (9, 11)
    clock.advance(61)
    assert (await servers[1].left(limits))[own][0] == Left("requests_per_minute", 3, 0, 0.0)


async def test_who_has_no_limit_costs_nothing(node, servers) -> None:
    clients = Clients()
    assert await clients.ask_all(servers, {TENANT: Limits(), KEY: Limits()}, 0) == CLIENTS
    for request_id in list(clients.reservations):
        clients.settle(servers[0], request_id, 5)
    assert await rows(node) == (0, 0)
    assert await clients.ask(servers[0], {TENANT: Limits(), KEY: Limits(concurrent_requests=1)})
    assert await rows(node) == (1, 1)


async def test_what_was_never_used_leaves_no_row(node, servers) -> None:
    clients = Clients()
    assert await clients.ask(servers[0], {KEY: Limits(concurrent_requests=1)})
    clients.settle(servers[0], next(iter(clients.reservations)), 0)
    await servers[0].close()
    node.clock.advance(61)
    await clients.ask(servers[0], {TENANT: Limits(concurrent_requests=0)})
    assert (await rows(node))[1] == 0


async def test_a_lost_database_admits_nobody_and_settles_later(node, servers) -> None:
    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=1)}
    assert await clients.ask(servers[0], limits)
    working = servers[0]._database
    servers[0]._database = Database("postgresql+psycopg://unknown@127.0.0.1:1/none")
    with pytest.raises(RegistryUnavailable):
        await clients.ask(servers[0], limits)
    clients.settle(servers[0], next(iter(clients.reservations)), 5)
    await asyncio.sleep(0.1)
    await servers[0]._database.close()
    servers[0]._database = working
    await servers[0].maintain()
    await servers[0].close()
    assert await clients.ask(servers[1], limits)


async def test_an_error_that_nobody_expected_leaves_nobody_waiting(servers, monkeypatch, caplog) -> None:
    async def broken(*_: object) -> object:
        raise LookupError("no such thing")

    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=1)}
    with monkeypatch.context() as patched:
        patched.setattr(limit_accounts_repo, "lock", broken)
        for _ in range(2):
            with pytest.raises(LookupError):
                await asyncio.wait_for(clients.ask(servers[0], limits), 10)
    assert "Limits could not be counted." in caplog.text
    assert await clients.ask(servers[0], limits)


async def test_the_settings_choose(node: Node, tmp_path: Path) -> None:
    def chosen(database: Database, wanted: str) -> type:
        return type(accounts_of(Settings(limit_accounts=wanted), database, "1" * 32))

    sqlite = Database(f"sqlite+aiosqlite:///{tmp_path / 'one.db'}")
    assert [chosen(sqlite, wanted) for wanted in ("auto", "memory")] == [MemoryAccounts] * 2
    assert [chosen(node.database, wanted) for wanted in ("auto", "database", "memory")] == [
        SharedAccounts,
        SharedAccounts,
        MemoryAccounts,
    ]
    for wanted, admitted in (("refuse", False), ("admit", True)):
        chosen_accounts = accounts_of(Settings(limits_unavailable=wanted), node.database, "1" * 32)
        assert isinstance(chosen_accounts, SharedAccounts)
        assert chosen_accounts._admit is admitted
    with pytest.raises(ValueError, match="TENORA_LIMIT_ACCOUNTS is database, which needs PostgreSQL"):
        chosen(sqlite, "database")
    await sqlite.close()


async def test_uncounted_admissions_are_counted_afterwards(node, clock, caplog, monkeypatch) -> None:
    server = SharedAccounts(node.database, "1" * 32, admit=True, monotonic=clock.monotonic)
    monkeypatch.setattr("app.services.limits.shared.utc_now", clock)
    clients, limits = Clients(), {TENANT: Limits(requests_per_minute=5, tokens_per_day=100, cost_per_day=1000)}
    assert await clients.ask(server, limits, 10)
    clients.settle(server, next(iter(clients.reservations)), 10)
    await server.close()
    working = server._database
    server._database = Database("postgresql+psycopg://unknown@127.0.0.1:1/none")
    with pytest.raises(RegistryUnavailable):
        await server.maintain()
    # More requests are admitted than fit, since they cannot be counted.
    assert [await clients.ask(server, limits, 30) for _ in range(6)] == [True] * 6
    assert server.health == Health(available=False, uncounted=6)
    assert caplog.text.count("Limits cannot be counted") == 1
    running, *ended = clients.reservations
    for request_id in ended:
        server.settle(request_id, clients.reservations.pop(request_id), 12, 7)
    await server._database.close()
    server._database = working
    await server.maintain()
    assert server.health == Health(available=True, uncounted=6)
    assert "6 requests were admitted uncounted" in caplog.text
    assert not await clients.ask(server, limits)
    clock.advance(61)
    for name, used in (("tokens_per_day", 10 + 5 * 12), ("cost_per_day", 5 * 7)):
        decision = await server.take("x" * 32, {TENANT: Limits(**{name: used})}, 1, 1)
        assert isinstance(decision.outcome, LimitBreach)
        assert decision.outcome.found == used + 1
    # A request that still ran when the accounts came back counts when it ends.
    clients.settle(server, running, 30)
    await server.maintain()
    assert not await clients.ask(server, {TENANT: Limits(tokens_per_day=100)}, 1)
    await server.close()


async def test_who_may_be_let_in_uncounted_waits_for_no_decision(node, monkeypatch) -> None:
    server, asked = SharedAccounts(node.database, "1" * 32, admit=True), asyncio.Event()

    async def late(*_: object) -> object:
        await asked.wait()
        return {}

    clients, limits = Clients(), {TENANT: Limits(concurrent_requests=1)}
    with monkeypatch.context() as patched:
        patched.setattr(limit_accounts_repo, "lock", late)
        patched.setattr("app.services.limits.shared._PATIENCE_S", 0.01)
        assert await clients.ask(server, limits)
        assert server.health == Health(available=False, uncounted=1)
        asked.set()
        await server.close()
    # The late decision leaves no reservation.
    await server.maintain()
    await server.close()
    assert (await rows(node))[1] == 0


async def test_who_does_not_wait_asks_the_database_once(node, clock, servers, monkeypatch) -> None:
    transactions = 0
    lock = limit_accounts_repo.lock

    async def counted(*arguments: object) -> object:
        nonlocal transactions
        transactions += 1
        return await lock(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(limit_accounts_repo, "lock", counted)
    clients, limits = Clients(), {TENANT: Limits(requests_per_minute=2, tokens_per_minute=100), KEY: Limits()}
    assert [await clients.ask(servers[0], limits, 1) for _ in range(3)] == [True, True, False]
    asked = transactions
    clock.advance(30)
    for _ in range(50):
        decision = await servers[0].take("x" * 32, limits, 1)
        assert isinstance(decision.outcome, LimitBreach)
    assert decision.outcome.retry_after_s == pytest.approx(30, abs=0.21)
    assert astuple(decision.rate_limits.requests) == (2, 0, pytest.approx(30, abs=0.21))
    assert transactions == asked
    # A changed limit applies immediately, and so does the end of the minute.
    assert await clients.ask(servers[0], {TENANT: Limits(requests_per_minute=3)}, 1)
    assert not await clients.ask(servers[0], limits, 1)
    clock.advance(30.5)
    assert await clients.ask(servers[0], limits, 1)


class Lines:
    """Attempts of lines of one batch: their reservations, and their entries in a journal."""

    def __init__(self, node: Node, folder: Path, pricing: Owner) -> None:
        self._node, self._folder, self._owner = node, folder, pricing

    async def reserve(self, server: SharedAccounts, limits: Mapping[Subject, Limits], attempt: str) -> bool:
        decision = await server.take(attempt, limits, 30, rated=False)
        return not isinstance(decision.outcome, LimitBreach)

    async def ship(self, batch_id: str, line: int, attempt: str) -> None:
        entry = UsageEntry(
            replace(record(1, self._owner.tenant_id, at=self._node.clock()), request_id=f"batch-{batch_id}-{line}"),
            LineResult(batch_id, line, 0, True, "{}"),
            attempt,
        )
        ledger = Ledger(self._node.database, Journal(self._folder / attempt))
        await ledger.open()
        await ledger.keep(entry)
        await ledger.close()


async def test_a_line_that_two_servers_ran_counts_once(node, clock, servers, tmp_path) -> None:
    """Reservations are settled with the records: whichever server's record is accepted, and in whichever order."""
    pricing = await owner(node, "pricing")
    limits: dict[Subject, Limits] = {TENANT: Limits(tokens_per_month=1000, concurrent_requests=1)}
    batch_id = await inserted(node, pricing, lines=4)
    lines = Lines(node, tmp_path, pricing)
    attempts = ("first", "second")
    # Both ran line 1; the first record comes first. Line 2: the reservation of the first one is reclaimed before.
    for line in (1, 2):
        for server, attempt in zip(servers, attempts, strict=True):
            assert await lines.reserve(server, limits, f"{attempt}-{line}")
    await lines.ship(batch_id, 1, "first-1")
    await lines.ship(batch_id, 1, "second-1")
    clock.advance(LEASE_S / 2)
    await servers[1].maintain()
    clock.advance(LEASE_S / 2 + 1)
    await servers[1].maintain()
    await lines.ship(batch_id, 2, "first-2")
    await lines.ship(batch_id, 2, "second-2")
    used = {left.name: left.used for left in (await servers[1].left(limits))[TENANT]}
    assert used == {"concurrent_requests": 0, "tokens_per_month": 2 * 13}
    assert await rows(node) == (1, 0), "no reservation is left"

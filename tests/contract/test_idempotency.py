"""Idempotency keys on both databases, and on two servers that share one."""

import asyncio
from datetime import timedelta

import pytest
from cryptography.exceptions import InvalidTag
from sqlalchemy import select, update

from app.database.tables import idempotency
from app.domain.errors import (
    IdempotencyConflict,
    IdempotencyInProgress,
    InvalidRequest,
    RegistryUnavailable,
    TooManyOpen,
)
from app.services.access.idempotency import KEPT_FOR, STALE_AFTER, Answer, IdempotencyService, Kept, Reservation
from app.services.access.peppers import Peppers
from tests.support.registry import PEPPERS, Node

pytest_plugins = ("tests.support.registry_fixtures",)

ACTOR, OTHER = "A" * 16, "B" * 16
REQUEST, OTHER_REQUEST = "1" * 64, "2" * 64
ANOTHER = Peppers(b"another pepper of 32 bytes or more")
SECRET = "tnr_the-text-of-a-new-key"
ANSWER = Answer(201, (("location", "/admin/keys/x"), ("content-type", "application/json")), SECRET.encode())


@pytest.fixture
def here(node: Node) -> IdempotencyService:
    return IdempotencyService(node.database, PEPPERS, clock=node.clock)


@pytest.fixture
def there(other_node: Node) -> IdempotencyService:
    return IdempotencyService(other_node.database, PEPPERS, clock=other_node.clock)


async def _reserved(service: IdempotencyService, key: str = "k", actor: str = ACTOR) -> Reservation:
    found = await service.reserve(actor, key)
    assert isinstance(found, Reservation)
    return found


async def _kept(service: IdempotencyService, key: str = "k", actor: str = ACTOR) -> Kept:
    found = await service.reserve(actor, key)
    assert isinstance(found, Kept)
    return found


async def test_the_first_answer_is_that_of_every_later_request(
    here: IdempotencyService, there: IdempotencyService
) -> None:
    await here.settle(await _reserved(here), REQUEST, ANSWER)
    for service in (here, there):
        kept = await _kept(service)
        service.check(kept, REQUEST)
        assert kept.answer == ANSWER


async def test_another_request_under_the_same_key_is_a_conflict(
    here: IdempotencyService, there: IdempotencyService
) -> None:
    await here.settle(await _reserved(here), REQUEST, ANSWER)
    with pytest.raises(IdempotencyConflict, match="Use a new key"):
        there.check(await _kept(there), OTHER_REQUEST)


async def test_keys_of_two_callers_and_two_keys_of_one_are_apart(here: IdempotencyService) -> None:
    await here.settle(await _reserved(here), REQUEST, ANSWER)
    await _reserved(here, actor=OTHER)
    await _reserved(here, key="k2")
    # Actor and key cannot be concatenated into a colliding pair.
    await _reserved(here, key="BA", actor="A")
    await _reserved(here, key="A", actor="AB")


async def test_one_of_many_at_once_is_the_first(here: IdempotencyService, there: IdempotencyService) -> None:
    asked = await asyncio.gather(
        *(service.reserve(ACTOR, "k") for service in (here, there) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(found, Reservation) for found in asked) == 1
    assert sum(isinstance(found, IdempotencyInProgress) for found in asked) == 15


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422, 429, 500, 503])
async def test_refusals_are_not_kept(here: IdempotencyService, node: Node, status: int) -> None:
    await here.settle(await _reserved(here), REQUEST, Answer(status, (), b"{}"))
    assert await _sizes(node) == {}
    await _reserved(here)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_what_was_done_is_kept(here: IdempotencyService, status: int) -> None:
    await here.settle(await _reserved(here), REQUEST, Answer(status, (), b""))
    assert (await _kept(here)).answer.status == status


async def _sizes(node: Node) -> dict[str, list[int]]:
    """Return the bytes of the stored answers by API key; 0 for a reservation."""
    found: dict[str, list[int]] = {}
    async with node.database.read() as connection:
        for row in await connection.execute(select(idempotency).order_by(idempotency.c.created_at)):
            found.setdefault(row.actor, []).append(len(row.body or b""))
    return found


async def test_an_api_key_keeps_its_newest_answers_only(
    here: IdempotencyService, there: IdempotencyService, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.access.idempotency.MOST_ROWS", 5)
    await here.settle(await _reserved(here, actor=OTHER), REQUEST, ANSWER)
    for number in range(12):
        service = (here, there)[number % 2]
        await service.settle(await _reserved(service, key=f"k{number}"), REQUEST, ANSWER)
        node.clock.advance(1)
    sizes = await _sizes(node)
    assert len(sizes[ACTOR]) == 5
    for number in range(7, 12):
        await _kept(here, key=f"k{number}")
    # Another caller's keys do not count.
    await _kept(here, actor=OTHER)
    await _reserved(here, key="k0")


async def test_an_api_key_keeps_so_many_bytes_only(
    here: IdempotencyService, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.access.idempotency.MOST_BYTES", 10_000)
    for number in range(8):
        answer = Answer(201, (), b"x" * 3000)
        await here.settle(await _reserved(here, key=f"k{number}"), REQUEST, answer)
        node.clock.advance(1)
    assert sum((await _sizes(node))[ACTOR]) <= 10_000
    for number in (5, 6, 7):
        await _kept(here, key=f"k{number}")


async def test_requests_under_way_are_bounded_and_none_is_dropped(
    here: IdempotencyService, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.access.idempotency.MOST_ROWS", 3)
    held = [await _reserved(here, key=f"k{number}") for number in range(3)]
    with pytest.raises(TooManyOpen, match="in progress, the maximum"):
        await here.reserve(ACTOR, "k3")
    await _reserved(here, actor=OTHER)
    await here.settle(held[0], REQUEST, ANSWER)
    await _reserved(here, key="k3")
    assert (await _sizes(node))[ACTOR] == [0, 0, 0]


async def test_a_request_that_was_not_read_is_not_kept(here: IdempotencyService) -> None:
    await here.settle(await _reserved(here), None, ANSWER)
    await _reserved(here)


async def test_a_server_that_died_is_waited_for_but_not_forever(
    here: IdempotencyService, there: IdempotencyService, node: Node
) -> None:
    lost = await _reserved(here)
    node.clock.advance(STALE_AFTER.total_seconds() - 1)
    with pytest.raises(IdempotencyInProgress):
        await there.reserve(ACTOR, "k")
    node.clock.advance(1)
    taken = await _reserved(there)
    # The first server was only slow. Its late answer is dropped, and no other reservation is released for it.
    await here.settle(lost, REQUEST, Answer(200, (), b"late"))
    await here.release(lost)
    with pytest.raises(IdempotencyInProgress):
        await here.reserve(ACTOR, "k")
    await there.settle(taken, REQUEST, ANSWER)
    assert (await _kept(here)).answer == ANSWER


async def test_a_long_request_keeps_its_reservation(
    here: IdempotencyService, there: IdempotencyService, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.access.idempotency._TOUCHED_EVERY_S", 0.01)
    reservation = await _reserved(here)
    started = node.clock()
    async with here.holding(reservation):
        node.clock.advance(STALE_AFTER.total_seconds() * 10)
        while await _created_at(node) <= started:
            await asyncio.sleep(0.01)
        with pytest.raises(IdempotencyInProgress):
            await there.reserve(ACTOR, "k")
    await here.settle(reservation, REQUEST, ANSWER)
    assert (await _kept(there)).answer == ANSWER


async def _created_at(node: Node):
    async with node.database.read() as connection:
        return await connection.scalar(select(idempotency.c.created_at))


async def test_after_24_hours_a_key_is_new_and_its_row_is_swept(here: IdempotencyService, node: Node) -> None:
    await here.settle(await _reserved(here), REQUEST, ANSWER)
    await here.settle(await _reserved(here, key="other"), REQUEST, ANSWER)
    node.clock.now += KEPT_FOR - timedelta(seconds=1)
    await here.sweep()
    await _kept(here)
    node.clock.advance(1)
    # The row is expired but not swept yet.
    await _reserved(here)
    node.clock.advance(1)
    await here.sweep()
    async with node.database.read() as connection:
        assert len((await connection.execute(select(idempotency))).all()) == 1


async def test_a_stolen_database_shows_neither_keys_nor_answers(here: IdempotencyService, node: Node) -> None:
    reservation = await _reserved(here, key="order-4711")
    await here.settle(reservation, REQUEST, ANSWER)
    async with node.database.read() as connection:
        row = (await connection.execute(select(idempotency))).one()
    stored = repr(tuple(row)).encode() + row.body
    for secret in (SECRET, "order-4711", REQUEST):
        assert secret.encode() not in stored
    assert "secret" not in repr(reservation)


async def test_an_answer_is_sealed_with_its_status_and_headers(here: IdempotencyService, node: Node) -> None:
    await here.settle(await _reserved(here), REQUEST, ANSWER)
    async with node.database.write() as connection:
        await connection.execute(update(idempotency).values(status=200))
    with pytest.raises(InvalidTag):
        await here.reserve(ACTOR, "k")


async def test_another_pepper_knows_nothing(here: IdempotencyService, node: Node) -> None:
    await here.settle(await _reserved(here), REQUEST, ANSWER)
    await _reserved(IdempotencyService(node.database, ANOTHER, clock=node.clock))


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\t", "umlaut ü", "nul\0", "line\n"])
async def test_keys_that_are_none(here: IdempotencyService, key: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 255 printable ASCII"):
        await here.reserve(ACTOR, key)


async def test_what_cannot_be_kept_does_not_fail_the_request(
    here: IdempotencyService, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reservation = await _reserved(here)

    def gone() -> None:
        raise RegistryUnavailable("the registry's database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(node.database, "write", gone)
        await here.settle(reservation, REQUEST, ANSWER)
        await here.release(reservation)
    assert "could not be stored for replay" in caplog.text

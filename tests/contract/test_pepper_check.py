"""Pepper check: the registry detects a wrong pepper before any caller is refused because of it."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from app.database import installation
from app.database.tables import audit, audit_seals
from app.services.access.audit import AuditService
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService
from app.services.access.pepper_check import check_peppers, open_peppers, replace_pepper
from app.services.access.peppers import MissingPepper, Peppers, WrongPepper, load_peppers
from app.settings import Settings
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

OLD, NEW, OTHER = (f"the {name} pepper of the tests, which is long enough" for name in ("old", "new", "other"))
#: Rounds of a rotation, as settings.
ROUNDS = [(OLD, ()), (OLD, (NEW,)), (NEW, (OLD,)), (NEW, ())]


def settings(home: Path, pepper: str | None, accepted: tuple[str, ...] = ()) -> Settings:
    return Settings(home=home, pepper=pepper, accepted_peppers=accepted)


async def starts(node: Node, home: Path, pepper: str | None, accepted: tuple[str, ...] = ()) -> bool:
    try:
        await open_peppers(node.database, settings(home, pepper, accepted))
    except (MissingPepper, WrongPepper):
        return False
    return True


async def make_key(node: Node, pepper: str) -> None:
    keys = KeyService(node.database, KeyHasher(Peppers(pepper.encode())), CallerCache(), clock=node.clock)
    await keys.create(None, name="x", actor="cli")


async def seal(node: Node, folder: Path, pepper: str, *, rows: int = 1) -> AuditService:
    """Simulate a server of the first release: audited and sealed, without a stored check value."""
    for _ in range(rows):
        await make_key(node, pepper)
    node.clock.advance(300)
    service = AuditService(node.database, Peppers(pepper.encode()), folder / "audit-seal", clock=node.clock)
    assert await service.seal() == rows
    return service


async def test_another_pepper_is_refused_with_the_way_out(node: Node, tmp_path: Path) -> None:
    assert await starts(node, tmp_path, OLD)
    assert await starts(node, tmp_path, OLD)
    with pytest.raises(WrongPepper, match=r"TENORA_PEPPER is not the pepper .*Restore .*TENORA_ACCEPTED_PEPPERS.*init"):
        await open_peppers(node.database, settings(tmp_path, OTHER))
    assert await starts(node, tmp_path, OLD), "who was refused has changed nothing"


async def test_no_pepper_is_made_for_a_registry_that_has_one(node: Node, tmp_path: Path) -> None:
    assert await starts(node, tmp_path / "first", None)
    assert (tmp_path / "first/secrets/pepper").exists()
    with pytest.raises(MissingPepper, match=r"no pepper at .*second/secrets/pepper.*Set TENORA_PEPPER"):
        await open_peppers(node.database, settings(tmp_path / "second", None))
    assert not (tmp_path / "second/secrets").exists()
    (tmp_path / "second/secrets").mkdir(parents=True)
    (tmp_path / "second/secrets/pepper").write_text(OTHER)
    with pytest.raises(WrongPepper, match="second/secrets/pepper is not the pepper"):
        await open_peppers(node.database, settings(tmp_path / "second", None))


async def test_every_round_of_a_rotation_starts_there_and_back(node: Node, tmp_path: Path) -> None:
    for pepper, accepted in (*ROUNDS, *ROUNDS[::-1]):
        assert await starts(node, tmp_path, pepper, accepted)
        assert not await starts(node, tmp_path, OTHER)


async def test_servers_of_two_rounds_start_in_any_order(node: Node, tmp_path: Path) -> None:
    for earlier, later in pairwise(ROUNDS):
        for pepper, accepted in (earlier, later, earlier, later):
            assert await starts(node, tmp_path, pepper, accepted)
    assert not await starts(node, tmp_path, OLD), "its time is over"


async def test_a_round_that_was_left_out_is_told(node: Node, tmp_path: Path) -> None:
    assert await starts(node, tmp_path, OLD)
    assert not await starts(node, tmp_path, NEW)
    assert await starts(node, tmp_path, NEW, (OTHER, OLD))


async def test_servers_that_start_at_once_on_a_new_registry_agree(node: Node, other_node: Node, tmp_path: Path) -> None:
    found = await asyncio.gather(starts(node, tmp_path, OLD), starts(other_node, tmp_path, NEW))
    assert sorted(found) == [False, True]
    again = [await starts(node, tmp_path, one) for one in (OLD, NEW)]
    assert again == found


@pytest.mark.parametrize("rows", [1, 3])
async def test_a_registry_of_before_is_known_by_its_seals(node: Node, tmp_path: Path, rows: int) -> None:
    await seal(node, tmp_path, OLD, rows=rows)
    assert not await starts(node, tmp_path, OTHER)
    assert not await starts(node, tmp_path, None)
    assert await starts(node, tmp_path, NEW, (OLD,))
    async with node.database.read() as connection:
        assert await installation.read(connection, "pepper") is not None


async def test_many_seals_of_before(node: Node, tmp_path: Path) -> None:
    await seal(node, tmp_path, OLD, rows=103)
    assert not await starts(node, tmp_path, OTHER)
    assert await starts(node, tmp_path, OLD)


async def test_a_trail_that_was_trimmed_is_known_by_its_anchor(node: Node, tmp_path: Path) -> None:
    service = await seal(node, tmp_path, OLD, rows=2)
    assert await service.trim(node.clock.now) == 2
    assert not await starts(node, tmp_path, OTHER)
    assert await starts(node, tmp_path, OLD)


async def test_a_tampered_trail_does_not_block_a_start(node: Node, tmp_path: Path) -> None:
    service = await seal(node, tmp_path, OLD, rows=4)
    async with node.database.write() as connection:
        first, second, third, _ = (await connection.scalars(select(audit.c.id).order_by(audit.c.id))).all()
        await connection.execute(delete(audit).where(audit.c.id == first))
        await connection.execute(update(audit).where(audit.c.id == second).values(actor="forger"))
        await connection.execute(update(audit_seals).where(audit_seals.c.row_id == third).values(mac="0" * 64))
    # The last row's seal depends on the third row's broken seal, so no seal is valid.
    assert not await starts(node, tmp_path, OLD)
    async with node.database.write() as connection:
        await connection.execute(update(audit).where(audit.c.id == second).values(actor="cli"))
    assert await starts(node, tmp_path, OLD)
    assert not await starts(node, tmp_path, OTHER)
    assert (await service.verify()).problems


async def test_unsealed_keys_require_an_existing_pepper(node: Node, tmp_path: Path) -> None:
    await make_key(node, OLD)
    assert not await starts(node, tmp_path, None)
    assert await starts(node, tmp_path, OLD)
    assert not await starts(node, tmp_path, OTHER)


async def test_a_check_changes_nothing(node: Node, tmp_path: Path) -> None:
    await seal(node, tmp_path, OLD)
    await check_peppers(node.database, Peppers(OLD.encode()), settings(tmp_path, OLD))
    with pytest.raises(WrongPepper):
        await check_peppers(node.database, Peppers(OTHER.encode()), settings(tmp_path, OTHER))
    async with node.database.read() as connection:
        assert await installation.read(connection, "pepper") is None


async def test_a_lost_pepper_can_be_replaced(node: Node, tmp_path: Path) -> None:
    assert await starts(node, tmp_path, OLD)
    await replace_pepper(node.database, settings(tmp_path, NEW))
    assert [await starts(node, tmp_path, one) for one in (OLD, NEW)] == [False, True]


async def test_the_check_value_reveals_no_pepper(node: Node, tmp_path: Path) -> None:
    peppers = await open_peppers(node.database, settings(tmp_path, None))
    async with node.database.read() as connection:
        stored = await installation.read(connection, "pepper")
    assert stored is not None
    assert bytes.fromhex(stored) not in {*peppers.every, *peppers.derived("audit", "seals")}
    assert peppers == load_peppers(settings(tmp_path, None), make=False)

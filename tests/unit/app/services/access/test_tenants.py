"""Tenants: create, update, list and delete."""

import base64

import pytest
from sqlalchemy import select

from adapters.errors import InvalidName
from app.database.tables import audit
from app.domain.errors import Conflict, InvalidRequest, NotFound
from tests.support.registry import Node, SettableClock

pytest_plugins = ("tests.support.registry_fixtures",)


async def test_a_tenant_is_kept_as_it_was_made(node: Node, clock: SettableClock) -> None:
    made = await node.tenants.create("pricing", name="Pricing & margins · Zürich", actor="cli")
    assert (made.slug, made.name, made.disabled) == ("pricing", "Pricing & margins · Zürich", False)
    assert made.created_at == clock.now
    assert await node.tenants.get("pricing") == made


async def test_its_name_is_the_slug_unless_given(node: Node) -> None:
    assert (await node.tenants.create("pricing", actor="cli")).name == "pricing"


@pytest.mark.parametrize("slug", ["", "Pricing", "-x", "a" * 64, "a/b", "\0", "x\n"])
async def test_an_invalid_slug_is_refused_and_never_found(node: Node, slug: str) -> None:
    with pytest.raises(InvalidName, match=r"^tenant '.*' is not valid"):
        await node.tenants.create(slug, actor="cli")
    with pytest.raises(NotFound):
        await node.tenants.get(slug)
    with pytest.raises(NotFound):
        await node.tenants.update(slug, name="x", actor="cli")
    with pytest.raises(NotFound):
        await node.tenants.delete(slug, actor="cli")


async def test_a_slug_is_taken_while_its_tenant_lives(node: Node) -> None:
    first = await node.tenants.create("pricing", actor="cli")
    with pytest.raises(Conflict) as caught:
        await node.tenants.create("pricing", actor="cli")
    assert caught.value.param == "slug"
    await node.tenants.delete("pricing", actor="cli")
    with pytest.raises(NotFound):
        await node.tenants.get("pricing")
    assert (await node.tenants.create("pricing", actor="cli")).id > first.id


async def test_a_reused_slug_inherits_nothing(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    old = await node.keys.create("pricing", name="till", actor="cli")
    await node.tenants.delete("pricing", actor="cli")
    await node.tenants.create("pricing", actor="cli")
    assert (await node.keys.list("pricing")).data == ()
    with pytest.raises(NotFound):
        await node.keys.revoke("pricing", old.key.id, actor="cli")


async def test_update_changes_what_is_given_only(node: Node) -> None:
    await node.tenants.create("pricing", name="Pricing", actor="cli")
    assert (await node.tenants.update("pricing", disabled=True, actor="cli")).name == "Pricing"
    changed = await node.tenants.update("pricing", name="Prices", actor="cli")
    assert (changed.name, changed.disabled) == ("Prices", True)
    assert await node.tenants.get("pricing") == changed


@pytest.mark.parametrize("name", ["", "a\0b", "a" * 101])
async def test_names_that_no_database_could_keep_are_refused(node: Node, name: str) -> None:
    await node.tenants.create("pricing", actor="cli")
    with pytest.raises(InvalidRequest, match=r"^name is .*; it must be"):
        await node.tenants.create("supply-chain", name=name, actor="cli")
    with pytest.raises(InvalidRequest, match=r"^name is .*; it must be"):
        await node.tenants.update("pricing", name=name, actor="cli")


async def test_a_tenant_with_adapters_is_not_deleted(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    with pytest.raises(Conflict, match="still has adapters"):
        await node.tenants.delete("pricing", actor="cli")
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="cli")
    await node.tenants.delete("pricing", actor="cli")


async def test_lists_go_page_by_page_past_the_deleted(node: Node) -> None:
    for number in range(6):
        await node.tenants.create(f"tenant-{number}", actor="cli")
    await node.tenants.delete("tenant-3", actor="cli")
    first = await node.tenants.list(limit=3)
    assert [tenant.slug for tenant in first.data] == ["tenant-0", "tenant-1", "tenant-2"]
    await node.tenants.delete("tenant-2", actor="cli")
    second = await node.tenants.list(limit=3, cursor=first.next_cursor)
    assert [tenant.slug for tenant in second.data] == ["tenant-4", "tenant-5"]
    assert second.next_cursor is None


async def test_a_full_last_page_has_no_next(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    assert (await node.tenants.list(limit=1)).next_cursor is None


def cursor_of(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor", ["", "x", "????", "é", "\0", cursor_of("-1"), cursor_of("0"), cursor_of("9" * 40), cursor_of("1 OR 1=1")]
)
async def test_a_bad_cursor_is_named(node: Node, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^cursor is .*; it must be") as caught:
        await node.tenants.list(cursor=cursor)
    assert caught.value.param == "cursor"


@pytest.mark.parametrize("limit", [0, -1, 201])
async def test_a_bad_limit_is_named(node: Node, limit: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^limit is .*; it must be a number from 1 to 200") as caught:
        await node.tenants.list(limit=limit)
    assert caught.value.param == "limit"


async def test_exactly_the_changes_leave_audit_rows(node: Node) -> None:
    await node.tenants.create("pricing", name="Pricing", actor="cli")
    await node.tenants.update("pricing", disabled=True, actor="admin-key")
    await node.tenants.update("pricing", disabled=True, actor="admin-key")
    await node.tenants.delete("pricing", actor="admin-key")
    with pytest.raises(NotFound):
        await node.tenants.delete("pricing", actor="admin-key")
    async with node.database.read() as connection:
        rows = (await connection.execute(select(audit).order_by(audit.c.id))).all()
    before, after = {"name": "Pricing", "disabled": False}, {"name": "Pricing", "disabled": True}
    assert [(row.actor, row.action, row.tenant, row.subject, row.before, row.after) for row in rows] == [
        ("cli", "tenant.create", "pricing", "pricing", None, before),
        ("admin-key", "tenant.update", "pricing", "pricing", before, after),
        ("admin-key", "tenant.delete", "pricing", "pricing", after, None),
    ]

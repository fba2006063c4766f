"""Sharing on both databases and through two servers: access by name, and its end."""

import pytest
from sqlalchemy import select

from adapters.errors import InvalidName
from adapters.identity import ModelName
from app.database.adapters import find_adapter, mark_adapter_deleted
from app.database.tables import audit
from app.database.versions import insert_version, mark_versions_deleted, settle_version
from app.domain.access import Tenant
from app.domain.adapters import VersionState
from app.domain.errors import AdapterNotReady, InvalidRequest, NotFound
from app.services.catalog import shares as module
from app.services.catalog.shares import SharingService
from tests.support.registry import Node, new_version, recorded_statements

pytest_plugins = ("tests.support.registry_fixtures",)

FORMS = (
    ModelName("prices", owner="pricing"),
    ModelName("prices", alias="default", owner="pricing"),
    ModelName("prices", alias=None, number=1, owner="pricing"),
)


def sharing(node: Node) -> SharingService:
    return SharingService(node.database, clock=node.clock)


async def made(node: Node) -> tuple[Tenant, Tenant]:
    """Create the owner of ``prices@1`` and another tenant."""
    owner = await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    return owner, await node.tenants.create("retail", actor="cli")


async def may_not(node: Node, tenant: Tenant, *names: ModelName) -> None:
    for name in names:
        with pytest.raises(NotFound, match="There is no model"):
            await node.adapters.resolve(tenant.id, name)


async def test_a_share_works_from_the_next_request_to_the_next_request(node: Node, other_node: Node) -> None:
    owner, retail = await made(node)
    third = await node.tenants.create("third", actor="cli")
    await may_not(other_node, retail, *FORMS)
    share, created = await sharing(node).share("pricing", "prices", "retail", actor="k", must_exist=False)
    assert (share.recipient, share.created_by, created) == ("retail", "k", True)
    for name in FORMS:
        found = await other_node.adapters.resolve(retail.id, name)
        assert (found.owner, found.adapter, found.number) == ("pricing", "prices", 1)
        assert (await node.adapters.resolve(owner.id, name)).key == found.key
    # The share gives nothing to other tenants, and adds no adapter of the recipient's own.
    await may_not(other_node, third, *FORMS)
    await may_not(other_node, retail, ModelName("prices"), ModelName("prices", owner="retail"))
    await sharing(node).unshare("pricing", "prices", "retail", actor="k")
    await may_not(node, retail, *FORMS)
    other_node.await_others()
    await may_not(other_node, retail, *FORMS)
    with pytest.raises(NotFound):
        await sharing(node).unshare("pricing", "prices", "retail", actor="k")


async def test_shared_and_not_shared_are_asked_by_the_same_query(node: Node, registry_url: str) -> None:
    _, retail = await made(node)
    await sharing(node).share("pricing", "prices", "retail", actor="k", must_exist=False)
    with recorded_statements(registry_url) as of_hit:
        await node.adapters.resolve(retail.id, FORMS[0])
    for name in (ModelName("nothing", owner="pricing"), ModelName("prices", owner="unknown")):
        with recorded_statements(registry_url) as of_miss, pytest.raises(NotFound):
            await node.adapters.resolve(retail.id, name)
        assert of_miss == of_hit
    assert len(of_hit) == 1


@pytest.mark.parametrize("state", [None, VersionState.REJECTED])
async def test_only_the_owner_sees_unready_versions(node: Node, state: VersionState | None) -> None:
    owner, retail = await made(node)
    await sharing(node).share("pricing", "prices", "retail", actor="k", must_exist=False)
    async with node.database.write() as connection:
        line = await find_adapter(connection, owner, "prices")
        assert line is not None
        version = await insert_version(connection, line.id, new_version("b", node.clock()))
        if state is not None:
            await settle_version(connection, version.key.version_id, state, "the owner's secret")
    second = ModelName("prices", alias=None, number=2, owner="pricing")
    await may_not(node, retail, second)
    with pytest.raises(AdapterNotReady):
        await node.adapters.resolve(owner.id, second)


async def test_what_the_recipient_sees(node: Node) -> None:
    await made(node)
    second = await node.publish("pricing", "prices", "b")
    service = sharing(node)
    await service.share("pricing", "prices", "retail", actor="k", must_exist=False)
    (shared,) = (await service.list_shared("retail")).data
    assert (shared.owner, shared.name, shared.versions) == ("pricing", "prices", (2, 1))
    assert shared.aliases == {"default": {2: 100}}
    assert await service.get_shared("retail", "pricing", "prices") == shared
    assert [v.number for v in (await service.list_shared_versions("retail", "pricing", "prices")).data] == [2, 1]
    assert (await service.get_shared_version("retail", "pricing", "prices", 1)).number == 1
    await node.adapters.quarantine(second.key.version_id, "it did not load")
    assert (await service.get_shared("retail", "pricing", "prices")).versions == (1,)
    assert [v.number for v in (await service.list_shared_versions("retail", "pricing", "prices")).data] == [1]
    for number in (2, 3):
        with pytest.raises(NotFound, match="no version"):
            await service.get_shared_version("retail", "pricing", "prices", number)
    assert (await service.list_shared("pricing")).data == ()
    for owner, adapter in (("pricing", "nothing"), ("unknown", "prices"), ("retail", "prices"), ("PRICING", "prices")):
        with pytest.raises(NotFound, match="is not shared with this tenant"):
            await service.get_shared("retail", owner, adapter)


async def test_a_version_on_trial_is_not_shown(node: Node) -> None:
    await made(node)
    service = sharing(node)
    await service.share("pricing", "prices", "retail", actor="k", must_exist=False)
    line = (await node.adapters.get_adapter("pricing", "prices")).id
    async with node.database.write() as connection:
        assert (await insert_version(connection, line, new_version("b", node.clock()))).number == 2
    assert (await service.get_shared("retail", "pricing", "prices")).versions == (1,)
    with pytest.raises(NotFound):
        await service.get_shared_version("retail", "pricing", "prices", 2)


async def test_a_deletion_ends_shares_also_for_a_reused_name(node: Node) -> None:
    _, retail = await made(node)
    service = sharing(node)
    await service.share("pricing", "prices", "retail", actor="k", must_exist=False)
    line = (await node.adapters.get_adapter("pricing", "prices")).id
    async with node.database.write() as connection:
        await mark_versions_deleted(connection, line)
        await mark_adapter_deleted(connection, line, at=node.clock())
    await may_not(node, retail, *FORMS)
    assert (await service.list_shared("retail")).data == ()
    await node.publish("pricing", "prices", "b")
    await may_not(node, retail, *FORMS)
    assert (await service.list_shared("retail")).data == ()


async def test_a_disabled_or_deleted_owner_shares_nothing(node: Node) -> None:
    _, retail = await made(node)
    service = sharing(node)
    await service.share("pricing", "prices", "retail", actor="k", must_exist=False)
    await node.tenants.update("pricing", disabled=True, actor="cli")
    await may_not(node, retail, *FORMS)
    assert (await service.list_shared("retail")).data == ()
    await node.tenants.update("pricing", disabled=False, actor="cli")
    assert (await node.adapters.resolve(retail.id, FORMS[0])).number == 1


async def test_an_unknown_slug_is_answered_like_an_existing_one(node: Node, registry_url: str) -> None:
    """A tenant that takes the slug later has no part in the share until it is shared again."""
    await made(node)
    service = sharing(node)

    async def given(recipient: str) -> tuple[object, ...]:
        share, created = await service.share("pricing", "prices", recipient, actor="k", must_exist=False)
        return share.created_at, share.created_by, created

    with recorded_statements(registry_url) as of_existing:
        to_existing = await given("retail")
    with recorded_statements(registry_url) as of_unknown:
        to_unknown = await given("future")
    assert to_existing == to_unknown
    assert of_existing == of_unknown
    future = await node.tenants.create("future", actor="cli")
    await may_not(node, future, *FORMS)
    node.clock.advance(60)
    again = [await given("retail"), await given("future")]
    # The time of the first share is kept. A new time would reveal that the tenant is new.
    assert again[0] == again[1] == (*to_unknown[:2], False)
    assert (await node.adapters.resolve(future.id, FORMS[0])).number == 1
    page = await service.list_shares("pricing", "prices")
    assert [(share.recipient, share.created_at) for share in page.data] == [
        ("future", to_unknown[0]),
        ("retail", to_unknown[0]),
    ]


async def test_a_tenant_that_takes_a_recipients_slug_gets_nothing(node: Node) -> None:
    await made(node)
    await sharing(node).share("pricing", "prices", "retail", actor="k", must_exist=False)
    await node.tenants.delete("retail", actor="cli")
    another = await node.tenants.create("retail", actor="cli")
    await may_not(node, another, *FORMS)
    assert (await sharing(node).list_shared("retail")).data == ()


async def test_the_platform_is_told_of_a_slip(node: Node) -> None:
    await made(node)
    with pytest.raises(NotFound, match="no tenant 'retial'"):
        await sharing(node).share("pricing", "prices", "retial", actor="k", must_exist=True)
    assert (await sharing(node).list_shares("pricing", "prices")).data == ()


@pytest.mark.parametrize("recipient", ["", "RETAIL", "ret ail", "retail\0", "r\u0435tail", "../retail", "x" * 64])
async def test_what_can_be_no_slug(node: Node, recipient: str) -> None:
    await made(node)
    with pytest.raises(InvalidName):
        await sharing(node).share("pricing", "prices", recipient, actor="k", must_exist=False)
    with pytest.raises(NotFound):
        await sharing(node).unshare("pricing", "prices", recipient, actor="k")


async def test_sharing_with_oneself_or_what_there_is_not(node: Node) -> None:
    await made(node)
    with pytest.raises(InvalidRequest, match="another tenant"):
        await sharing(node).share("pricing", "prices", "pricing", actor="k", must_exist=False)
    for tenant, adapter in (("pricing", "nothing"), ("unknown", "prices")):
        with pytest.raises(NotFound):
            await sharing(node).share(tenant, adapter, "retail", actor="k", must_exist=False)


async def test_the_number_of_recipients_has_an_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SHARES", 2)
    await made(node)
    for recipient in ("a", "b", "b"):
        await sharing(node).share("pricing", "prices", recipient, actor="k", must_exist=False)
    with pytest.raises(InvalidRequest, match="shared with 2 tenants, which is the limit"):
        await sharing(node).share("pricing", "prices", "c", actor="k", must_exist=False)
    first = await sharing(node).list_shares("pricing", "prices", limit=1)
    second = await sharing(node).list_shares("pricing", "prices", limit=1, cursor=first.next_cursor)
    assert [share.recipient for page in (first, second) for share in page.data] == ["a", "b"]
    assert second.next_cursor is None


async def test_what_is_shared_comes_in_pages(node: Node) -> None:
    await made(node)
    for adapter in ("b", "a"):
        await node.publish("pricing", adapter, adapter)
    for adapter in ("prices", "a", "b"):
        await sharing(node).share("pricing", adapter, "retail", actor="k", must_exist=False)
    first = await sharing(node).list_shared("retail", limit=2)
    second = await sharing(node).list_shared("retail", limit=2, cursor=first.next_cursor)
    assert [shared.name for page in (first, second) for shared in page.data] == ["prices", "b", "a"]
    assert second.next_cursor is None


async def test_every_change_is_in_the_trail(node: Node) -> None:
    await made(node)
    await sharing(node).share("pricing", "prices", "retail", actor="k", must_exist=False)
    await sharing(node).unshare("pricing", "prices", "retail", actor="k2")
    columns = (audit.c.action, audit.c.actor, audit.c.tenant, audit.c.subject, audit.c.before, audit.c.after)
    async with node.database.read() as connection:
        rows = await connection.execute(select(*columns).where(audit.c.action.like("adapter.%share")).order_by("id"))
        assert [tuple(row) for row in rows] == [
            ("adapter.share", "k", "pricing", "prices", None, {"recipient": "retail"}),
            ("adapter.unshare", "k2", "pricing", "prices", {"recipient": "retail"}, None),
        ]

"""Adapters and versions: resolve, show, quarantine and delete."""

import pytest
from sqlalchemy import select

from adapters.identity import ModelName, parse_model_name
from app.database.tables import audit
from app.domain.adapters import VersionState
from app.domain.errors import AdapterQuarantined, InvalidRequest, NotFound
from tests.support.registry import Node, new_version

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
async def tenant_id(node: Node) -> int:
    """Id of the tenant ``pricing``, whose adapter ``prices`` has versions 1, 2 and 3."""
    tenant = await node.tenants.create("pricing", actor="cli")
    for content in ("a", "b", "c"):
        await node.publish("pricing", "prices", content)
    return tenant.id


async def test_names_resolve_to_versions(node: Node, tenant_id: int) -> None:
    newest = await node.adapters.resolve(tenant_id, parse_model_name("prices"))
    assert (newest.adapter, newest.number, newest.alias) == ("prices", 3, "default")
    content = new_version("c", node.clock())
    assert newest.key.config_digest == content.config_digest
    assert newest.key.weights_digest == content.weights_digest
    assert (newest.key.config_bytes, newest.key.weights_bytes) == (content.config_bytes, content.weights_bytes)
    by_number = await node.adapters.resolve(tenant_id, parse_model_name("prices@2"))
    assert (by_number.number, by_number.alias) == (2, None)
    assert (await node.adapters.resolve(tenant_id, parse_model_name("prices:default"))) == newest


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "'nothing'"), ("prices:canary", "'prices:canary'"), ("prices@2147483647", "'prices@2147483647'")],
)
async def test_names_without_a_version_are_not_found_as_written(
    node: Node, tenant_id: int, name: str, message: str
) -> None:
    with pytest.raises(NotFound, match=message) as caught:
        await node.adapters.resolve(tenant_id, parse_model_name(name))
    assert caught.value.param == "model"


async def test_a_quarantined_version_is_not_served_and_says_so(node: Node, tenant_id: int) -> None:
    version = await node.adapters.get_version("pricing", "prices", 3)
    assert await node.adapters.quarantine(version.key.version_id, "the engine said: \0 bad")
    assert not await node.adapters.quarantine(version.key.version_id, "again")
    with pytest.raises(AdapterQuarantined, match="prices@3"):
        await node.adapters.resolve(tenant_id, ModelName("prices"))
    shown = await node.adapters.get_version("pricing", "prices", 3)
    assert (shown.state, shown.state_reason) == (VersionState.QUARANTINED, "the engine said:  bad")
    assert (await node.adapters.resolve(tenant_id, ModelName("prices", alias=None, number=2))).number == 2


async def test_quarantining_what_is_not_there_changes_nothing(node: Node) -> None:
    assert not await node.adapters.quarantine(12345, "gone")


async def test_an_adapter_shows_its_versions_newest_first(node: Node, tenant_id: int) -> None:
    adapter = await node.adapters.get_adapter("pricing", "prices")
    assert (adapter.name, adapter.tenant, adapter.versions) == ("prices", "pricing", (3, 2, 1))
    assert adapter.aliases == {"default": {3: 100}}
    listed = await node.adapters.list_adapters("pricing")
    assert listed.data == (adapter,)


async def test_a_version_shows_what_was_uploaded(node: Node, tenant_id: int) -> None:
    version = await node.adapters.get_version("pricing", "prices", 3)
    assert (version.adapter, version.number, version.state) == ("prices", 3, VersionState.READY)
    assert (version.rank, version.created_by, version.aliases) == (8, "cli", ("default",))
    assert version.manifest == {"r": 8, "lora_alpha": 16}
    assert version.created_at == node.clock()
    assert (await node.adapters.get_version("pricing", "prices", 2)).aliases == ()


async def test_adapters_and_versions_are_listed_page_by_page(node: Node, tenant_id: int) -> None:
    for name in ("margins", "costs"):
        await node.publish("pricing", name, name)
    first = await node.adapters.list_adapters("pricing", limit=2)
    second = await node.adapters.list_adapters("pricing", limit=2, cursor=first.next_cursor)
    assert [adapter.name for adapter in first.data + second.data] == ["prices", "margins", "costs"]
    assert second.next_cursor is None
    newest = await node.adapters.list_versions("pricing", "prices", limit=2)
    oldest = await node.adapters.list_versions("pricing", "prices", limit=2, cursor=newest.next_cursor)
    assert [version.number for version in newest.data + oldest.data] == [3, 2, 1]
    assert oldest.next_cursor is None


async def test_bad_cursors_and_limits_are_named(node: Node, tenant_id: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^cursor is .*; it must be"):
        await node.adapters.list_adapters("pricing", cursor="nonsense")
    with pytest.raises(InvalidRequest, match=r"^cursor is .*; it must be"):
        await node.adapters.list_versions("pricing", "prices", cursor="nonsense")
    with pytest.raises(InvalidRequest, match=r"^limit is .*; it must be"):
        await node.adapters.list_adapters("pricing", limit=0)
    with pytest.raises(InvalidRequest, match=r"^limit is .*; it must be"):
        await node.adapters.list_versions("pricing", "prices", limit=10**30)


async def test_one_tenant_sees_nothing_of_another(node: Node, tenant_id: int) -> None:
    await node.tenants.create("supply-chain", actor="cli")
    assert (await node.adapters.list_adapters("supply-chain")).data == ()
    for adapter in ("prices", "nothing", "\0", "A"):
        with pytest.raises(NotFound, match="There is no adapter"):
            await node.adapters.get_adapter("supply-chain", adapter)
        with pytest.raises(NotFound, match="There is no adapter"):
            await node.adapters.list_versions("supply-chain", adapter)
        with pytest.raises(NotFound, match="There is no adapter"):
            await node.adapters.get_version("supply-chain", adapter, 1)
        with pytest.raises(NotFound, match="There is no adapter"):
            await node.deletions.delete_version("supply-chain", adapter, 1, force=True, actor="cli")
        with pytest.raises(NotFound, match="There is no adapter"):
            await node.deletions.delete_adapter("supply-chain", adapter, force=True, actor="cli")
    assert (await node.adapters.get_adapter("pricing", "prices")).versions == (3, 2, 1)


@pytest.mark.parametrize("number", [-1, 0, 4, 10**30])
async def test_versions_that_never_were_are_not_found(node: Node, tenant_id: int, number: int) -> None:
    with pytest.raises(NotFound, match="There is no version"):
        await node.adapters.get_version("pricing", "prices", number)
    with pytest.raises(NotFound, match="There is no version"):
        await node.deletions.delete_version("pricing", "prices", number, force=True, actor="cli")


async def test_deleting_the_default_moves_it_to_the_newest_ready(node: Node, tenant_id: int) -> None:
    middle = await node.adapters.get_version("pricing", "prices", 2)
    await node.adapters.quarantine(middle.key.version_id, "did not load")
    await node.deletions.delete_version("pricing", "prices", 3, force=True, actor="cli")
    assert (await node.adapters.resolve(tenant_id, ModelName("prices"))).number == 1
    with pytest.raises(NotFound):
        await node.adapters.resolve(tenant_id, ModelName("prices", alias=None, number=3))
    with pytest.raises(NotFound):
        await node.adapters.get_version("pricing", "prices", 3)
    adapter = await node.adapters.get_adapter("pricing", "prices")
    assert (adapter.versions, adapter.aliases) == ((2, 1), {"default": {1: 100}})


async def test_deleting_another_version_leaves_the_default_alone(node: Node, tenant_id: int) -> None:
    await node.deletions.delete_version("pricing", "prices", 1, force=True, actor="cli")
    assert (await node.adapters.get_adapter("pricing", "prices")).aliases == {"default": {3: 100}}


async def test_with_the_last_version_the_default_goes_too(node: Node, tenant_id: int) -> None:
    for number in (3, 2, 1):
        await node.deletions.delete_version("pricing", "prices", number, force=True, actor="cli")
    adapter = await node.adapters.get_adapter("pricing", "prices")
    assert (adapter.versions, adapter.aliases) == ((), {})
    with pytest.raises(NotFound):
        await node.adapters.resolve(tenant_id, ModelName("prices"))
    assert (await node.publish("pricing", "prices", "a")).number == 4


async def test_deleting_an_adapter_frees_its_name(node: Node, tenant_id: int) -> None:
    removed, _ = await node.deletions.delete_adapter("pricing", "prices", force=True, actor="cli")
    assert [version.name for version in removed.versions] == ["prices@1", "prices@2", "prices@3"]
    assert len(removed.digests) == 6
    for name in ("prices", "prices@1"):
        with pytest.raises(NotFound):
            await node.adapters.resolve(tenant_id, parse_model_name(name))
    with pytest.raises(NotFound):
        await node.adapters.get_adapter("pricing", "prices")
    assert (await node.publish("pricing", "prices", "a")).number == 1
    assert (await node.adapters.resolve(tenant_id, ModelName("prices"))).number == 1


async def test_deleting_an_adapter_without_versions_left_frees_nothing(node: Node, tenant_id: int) -> None:
    for number in (1, 2, 3):
        await node.deletions.delete_version("pricing", "prices", number, force=True, actor="cli")
    removed, _ = await node.deletions.delete_adapter("pricing", "prices", force=False, actor="cli")
    assert (removed.versions, removed.digests) == ((), ())


async def test_every_change_leaves_an_audit_row(node: Node, tenant_id: int) -> None:
    version = await node.adapters.get_version("pricing", "prices", 2)
    await node.adapters.quarantine(version.key.version_id, "did not load")
    await node.deletions.delete_version("pricing", "prices", 3, force=True, actor="admin-key")
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="cli")
    async with node.database.read() as connection:
        rows = (await connection.execute(select(audit).order_by(audit.c.id))).all()[1:]
    assert [(row.actor, row.action, row.tenant, row.subject) for row in rows] == [
        *(("cli", "version.ready", "pricing", f"prices@{number}") for number in (1, 2, 3)),
        ("engine", "version.quarantine", "pricing", "prices@2"),
        ("admin-key", "version.delete", "pricing", "prices@3"),
        ("cli", "adapter.delete", "pricing", "prices"),
    ]
    quarantined, deleted, adapter = rows[3:]
    assert quarantined.before == {"state": "ready"}
    assert quarantined.after == {"state": "quarantined", "reason": "did not load"}
    assert deleted.before["aliases"] == ["default"]
    assert deleted.after["aliases"] == {"default": {"1": 100}}
    assert adapter.before == {"versions": [2, 1], "aliases": {"default": {"1": 100}}}

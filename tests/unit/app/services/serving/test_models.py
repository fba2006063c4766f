"""Models of a caller: its own and those shared with it, and inference by a shared name."""

import pytest

from app.domain.access import Caller, Scope
from app.domain.errors import Forbidden, NotFound
from app.engine.port import Endpoint
from app.services.catalog.shares import SharingService
from app.services.serving.models import Model, ModelService
from tests.support.inference import inference_service
from tests.support.recorder import PLATFORM, Recorder
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)


def models_of(node: Node) -> ModelService:
    return ModelService(node.adapters, SharingService(node.database, clock=node.clock), base_name="demo")


async def caller_of(node: Node, slug: str) -> Caller:
    tenant = await node.tenants.create(slug, actor="cli")
    return Caller("key", tenant.id, slug, frozenset({Scope.INFERENCE}), f"salt of {slug}")


async def share(node: Node, adapter: str, recipient: str) -> None:
    service = SharingService(node.database, clock=node.clock)
    await service.share("pricing", adapter, recipient, actor="k", must_exist=True)


async def test_a_platform_key_has_no_models(node: Node) -> None:
    with pytest.raises(Forbidden):
        await models_of(node).list_models(PLATFORM)
    with pytest.raises(Forbidden):
        await models_of(node).get_model(PLATFORM, "prices")


async def test_all_of_many_adapters_are_listed_own_ones_first(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.serving.models._PAGE", 2)
    await caller_of(node, "pricing")
    retail = await caller_of(node, "retail")
    for number in range(5):
        await node.publish("retail", f"own-{number}", str(number))
        await node.publish("pricing", f"theirs-{number}", str(number))
        await share(node, f"theirs-{number}", "retail")
    listed = [model.id for model in await models_of(node).list_models(retail)]
    assert listed == ["demo", *(f"own-{n}" for n in range(5)), *(f"pricing/theirs-{n}" for n in range(5))]


async def test_a_model_by_any_name(node: Node) -> None:
    pricing, retail = await caller_of(node, "pricing"), await caller_of(node, "retail")
    made = await node.publish("pricing", "prices", "a")
    await node.publish("pricing", "prices", "b")
    await share(node, "prices", "retail")
    created, service = int(made.created_at.timestamp()), models_of(node)
    for name, number in (("prices", 2), ("prices@1", 1), ("prices:default", 2)):
        assert await service.get_model(pricing, name) == Model(name, created, "pricing", f"prices@{number}", "demo")
        shared = f"pricing/{name}"
        root = f"pricing/prices@{number}"
        assert await service.get_model(retail, shared) == Model(shared, created, "pricing", root, "demo")
        with pytest.raises(NotFound):
            await service.get_model(retail, name)
    assert (await service.get_model(pricing, "pricing/prices")).root == "prices@2"
    assert (await service.list_models(retail))[1] == await service.get_model(retail, "pricing/prices")
    for name in ("never-was", "pricing/never-was", "retail/prices", "pricing/prices@3", "pricing/", "/prices"):
        with pytest.raises(NotFound):
            await service.get_model(retail, name)


async def test_shared_adapters_use_the_recipients_prefix_cache(node: Node) -> None:
    """The prefix cache salt is the caller's, not the adapter owner's."""
    await caller_of(node, "pricing")
    retail = await caller_of(node, "retail")
    version = await node.publish("pricing", "prices", "a")
    await share(node, "prices", "retail")
    engine = Recorder({"choices": []})
    inference = inference_service(node, engine)
    body = {"prompt": "x", "model": "pricing/prices"}
    served = await inference.complete(retail, "id", Endpoint.COMPLETIONS, body)
    assert served.version == "pricing/prices@1"
    (request,) = engine.requests
    assert (request.adapter, request.cache_salt, request.model) == (version.key, "salt of retail", "pricing/prices")

"""The generated parts of the library are current, and both clients are alike."""

import inspect
from collections.abc import Iterator
from typing import Any

import httpx

from deploy.client.sync import TARGET, sync_modules
from deploy.client.types import TARGET as TYPES
from deploy.client.types import digest, prepared
from tenora_client import AsyncClient, Client
from tests.support.site import Site

HINT = "run `make client-code`"
NAMESPACES = ("adapters", "tenants", "keys", "files", "batches")


def test_the_synchronous_client_is_current() -> None:
    on_disk = {path: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py")}
    assert on_disk == sync_modules(), HINT


def test_the_types_are_those_of_the_openapi_document(site: Site) -> None:
    document = httpx.get(f"{site.url}/openapi.json", trust_env=False).json()
    assert f"# Schemas: {digest(prepared(document))}\n" in TYPES.read_text(encoding="utf-8"), "run `make client-types`"


def _methods(kind: type) -> dict[str, Any]:
    return {name: method for name, method in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def _pairs() -> Iterator[tuple[type, type]]:
    yield Client, AsyncClient
    sync, asynchronous = Client("http://localhost", "k"), AsyncClient("http://localhost", "k")
    for name in NAMESPACES:
        yield type(getattr(sync, name)), type(getattr(asynchronous, name))
    sync.close()


def test_both_clients_have_the_same_methods_and_signatures() -> None:
    for sync, asynchronous in _pairs():
        ours, theirs = _methods(sync), _methods(asynchronous)
        assert set(ours) == set(theirs)
        assert len(ours) > 4
        for name, method in ours.items():
            other = inspect.signature(theirs[name])
            returned = str(other.return_annotation).replace("AsyncIterator", "Iterator").replace("Async", "")
            assert inspect.signature(method) == other.replace(return_annotation=returned), name
            assert not inspect.iscoroutinefunction(method)
            assert not inspect.isasyncgenfunction(method)

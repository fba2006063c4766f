"""Scopes on every route: no tenant key gains platform rights."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.support.foreign_names import without
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

#: All operations of the OpenAPI description, so that future routes are attacked too.
OPERATIONS = sorted(
    (method.upper(), path)
    for path, methods in create_app(Settings(home=Path("unused"))).openapi()["paths"].items()
    for method in methods
)
OPEN = {"/health/live", "/health/ready"}
#: Routes for inference keys. They include what the key may know of itself and of the server.
INFERENCE = {
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/tokenize",
    "/v1/detokenize",
    "/generate",
    "/generate_stream",
    "/",
    "/v1/models",
    "/v1/limits",
    "/v1/key",
    "/v1/server",
    "/v1/session",
}
#: Routes with the tenant in the path: a tenant's own key may use them for itself.
OF_A_TENANT = tuple(f"/admin/tenants/{{tenant}}/{what}" for what in ("adapters", "deletions", "refusals", "shared"))
FILL = {"adapter": "secret", "number": "1", "alias": "default", "recipient": "x", "upload": "0" * 32, "file": "x"}


def filled(path: str, tenant: str) -> str:
    for name, value in {"tenant": tenant, **FILL}.items():
        path = path.replace(f"{{{name}}}", value)
    # The remaining parameters get an id that does not exist.
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


def shown(operations: list[tuple[str, str]]) -> list[str]:
    return [" ".join(one) for one in operations]


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/secret/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture(scope="module")
def attacker(site: Site, admin: httpx.Client) -> Iterator[httpx.Client]:
    """Key with every scope that a tenant's key can have."""
    with site.client(make_unit(admin).key) as client:
        yield client


def test_the_operations_are_all_there() -> None:
    assert len(OPERATIONS) > 80
    assert {path for _, path in OPERATIONS} > OPEN | INFERENCE


CLOSED = [one for one in OPERATIONS if one[1] not in OPEN]


@pytest.mark.parametrize(("method", "path"), CLOSED, ids=shown(CLOSED))
def test_without_a_key_no_route_answers(site: Site, owner: Unit, method: str, path: str) -> None:
    with site.client(None) as anonymous:
        assert anonymous.request(method, filled(path, owner.slug)).status_code == 401


PLATFORM = [one for one in OPERATIONS if one[1].startswith("/admin") and not one[1].startswith(OF_A_TENANT)]


@pytest.mark.parametrize(("method", "path"), PLATFORM, ids=shown(PLATFORM))
def test_a_tenants_key_is_no_platform_key(attacker: httpx.Client, owner: Unit, method: str, path: str) -> None:
    body = {"name": "x", "slug": "x", "scopes": ["admin"]} if method in {"POST", "PATCH"} else None
    for slug in (owner.slug, "nosuch"):
        answer = attacker.request(method, filled(path, slug), json=body)
        assert answer.status_code == 403, answer.text
        assert answer.json()["error"]["message"] == "The key lacks the scope admin."


FOREIGN = [one for one in OPERATIONS if one[1].startswith(OF_A_TENANT)]


@pytest.mark.parametrize(("method", "path"), FOREIGN, ids=shown(FOREIGN))
def test_another_tenants_routes_look_absent(
    attacker: httpx.Client, admin: httpx.Client, owner: Unit, method: str, path: str
) -> None:
    before = admin.get(f"/admin/tenants/{owner.slug}").json()["used"]
    foreign, absent = (attacker.request(method, filled(path, slug)) for slug in (owner.slug, "nosuch"))
    assert foreign.status_code == 404
    assert without(owner.slug, foreign) == without("nosuch", absent)
    assert admin.get(f"/admin/tenants/{owner.slug}").json()["used"] == before


ELSEWHERE = [one for one in CLOSED if one[1] not in INFERENCE and not one[1].startswith("/v1/models")]


@pytest.mark.parametrize(("method", "path"), ELSEWHERE, ids=shown(ELSEWHERE))
def test_a_key_for_inference_does_nothing_else(
    site: Site, admin: httpx.Client, owner: Unit, method: str, path: str
) -> None:
    """It has no other rights on its own tenant either."""
    made = admin.post(f"/admin/tenants/{owner.slug}/keys", json={"name": "weak", "scopes": ["inference"]}).json()
    with site.client(made["key"]) as weak:
        answer = weak.request(method, filled(path, owner.slug))
    assert answer.status_code == 403, answer.text

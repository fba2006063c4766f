"""Timing attacks on the server: existence, warmth, known keys, and prompts sent by other tenants."""

import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.support.guessing import SECRET_AT, guess
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts
from tests.support.timing import Stopwatch, assert_alike

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Owner of the adapter ``secret``. Its names are as long as the absent ones."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/secret/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture(scope="module")
def attacker(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture
def watch(site: Site) -> Iterator[Stopwatch]:
    with Stopwatch(site.url) as watch:
        yield watch


def unused_slug() -> str:
    """Return an unused slug of the same form as those of the tenants here."""
    return f"unit-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("form", ["{}", "{}@1", "{}:default", "{owner}/{}"])
def test_foreign_and_absent_models_take_the_same_time(watch: Stopwatch, owner: Unit, attacker: Unit, form: str) -> None:
    def ask(slug: str, adapter: str) -> Callable[[], float]:
        body = {"model": form.format(adapter, owner=slug), "prompt": "x"}
        return lambda: watch.seconds("POST", "/v1/completions", key=attacker.key, status=404, body=body)

    assert_alike(f"model {form}", ask(owner.slug, "secret"), ask(owner.slug, "absent"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/tokenize", {"prompt": "x"}),
    ],
)
def test_other_apis_take_the_same_time_too(
    watch: Stopwatch, owner: Unit, attacker: Unit, path: str, body: dict[str, object]
) -> None:
    def ask(adapter: str) -> Callable[[], float]:
        asked = body | {"model": adapter}
        return lambda: watch.seconds("POST", path, key=attacker.key, status=404, body=asked)

    assert_alike(f"model on {path}", ask("secret"), ask("absent"))


def test_whether_a_tenant_is_there(watch: Stopwatch, owner: Unit, attacker: Unit) -> None:
    def ask(slug: str) -> Callable[[], float]:
        body = {"model": f"{slug}/secret", "prompt": "x"}
        return lambda: watch.seconds("POST", "/v1/completions", key=attacker.key, status=404, body=body)

    assert_alike("tenant in a model's name", ask(owner.slug), ask(unused_slug()))


@pytest.mark.parametrize("path", ["/v1/models/{1}", "/v1/adapters/{1}", "/v1/shared/{0}/{1}"])
def test_foreign_and_absent_adapters_take_the_same_time(
    watch: Stopwatch, owner: Unit, attacker: Unit, path: str
) -> None:
    def ask(adapter: str) -> Callable[[], float]:
        return lambda: watch.seconds("GET", path.format(owner.slug, adapter), key=attacker.key, status=404)

    assert_alike(path, ask("secret"), ask("absent"))


@pytest.mark.parametrize("path", ["", "/secret", "/secret/versions/1"])
def test_whether_a_tenant_has_routes(watch: Stopwatch, owner: Unit, attacker: Unit, path: str) -> None:
    def ask(slug: str) -> Callable[[], float]:
        whole = f"/admin/tenants/{slug}/adapters{path}"
        return lambda: watch.seconds("GET", whole, key=attacker.key, status=404)

    assert_alike(f"/admin/tenants/TENANT/adapters{path}", ask(owner.slug), ask(unused_slug()))


def test_whether_a_key_id_is_known(watch: Stopwatch, owner: Unit) -> None:
    def ask(known: str) -> Callable[[], float]:
        return lambda: watch.seconds("GET", "/v1/models", key=guess(known), status=401)

    assert_alike("key id", ask(owner.key[:SECRET_AT]), ask(""))


def test_whether_the_first_half_of_a_secret_is_right(watch: Stopwatch, owner: Unit) -> None:
    """The key's id is known and its checksum is right in both cases."""

    def ask(right: int) -> Callable[[], float]:
        return lambda: watch.seconds("GET", "/v1/models", key=guess(owner.key[:right]), status=401)

    assert_alike("half a secret", ask(SECRET_AT + 21), ask(SECRET_AT))


@pytest.mark.parametrize("ended", ["revoked", "expired", "disabled"])
def test_whether_a_key_ever_worked(site: Site, admin: httpx.Client, watch: Stopwatch, ended: str) -> None:
    unit = make_unit(admin)
    path = f"/admin/tenants/{unit.slug}"
    made = admin.post(f"{path}/keys", json={"name": "x", "expires_in_s": 1 if ended == "expired" else None}).json()
    if ended == "revoked":
        assert admin.delete(f"{path}/keys/{made['id']}").status_code == 204
    if ended == "disabled":
        assert admin.patch(path, json={"disabled": True}).status_code == 200
    if ended == "expired":
        with site.client(made["key"]) as client:
            while client.get("/v1/models").status_code != 401:
                pass

    def ask(key: str | None) -> Callable[[], float]:
        return lambda: watch.seconds("GET", "/v1/models", key=key or guess(), status=401)

    assert_alike(f"{ended} key", ask(made["key"]), ask(None))

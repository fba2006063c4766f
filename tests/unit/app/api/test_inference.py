"""Inference routes up to the engine: keys, names, bodies, and the envelope of each API family."""

import uuid

import httpx
import pytest

from tests.support.site import Site, Unit, make_unit, parts

ROUTES = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/tokenize": {"prompt": "hi"},
    "/v1/detokenize": {"tokens": [1]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/generate": {"inputs": "hi"},
    "/generate_stream": {"inputs": "hi"},
    "/": {"inputs": "hi"},
}
ANTHROPIC = ["/v1/messages", "/v1/messages/count_tokens"]
OPENAI = [path for path in ROUTES if path.startswith("/v1") and path not in ANTHROPIC]
LORAX = [path for path in ROUTES if not path.startswith("/v1")]
#: Keys of the error envelope of the routes that do not have OpenAI's.
KEYS = dict.fromkeys(LORAX, frozenset({"error", "error_type"})) | dict.fromkeys(ANTHROPIC, frozenset({"type", "error"}))


def named(path, name):
    """Return a body for the route that names this adapter."""
    if path in LORAX:
        return ROUTES[path] | {"parameters": {"adapter_id": name}}
    return ROUTES[path] | {"model": name}


@pytest.fixture
def client(site: Site, unit: Unit):
    with site.client(unit.key) as client:
        yield client


@pytest.fixture
def published(client: httpx.Client, files):
    """Name of an adapter with one version."""
    name = f"adapter-{uuid.uuid4().hex[:8]}"
    assert client.post(f"/v1/adapters/{name}/versions", files=parts(files)).status_code == 201
    return name


@pytest.mark.parametrize("path", ROUTES)
def test_a_key_is_needed(site: Site, path):
    with site.client(None) as anonymous:
        answer = anonymous.post(path, json=ROUTES[path])
    assert answer.status_code == 401
    assert set(answer.json()) == KEYS.get(path, {"error"})


@pytest.mark.parametrize("path", ROUTES)
def test_a_platform_key_does_not_infer(admin: httpx.Client, path):
    assert admin.post(path, json=ROUTES[path]).status_code == 403


@pytest.mark.parametrize("path", ROUTES)
def test_absent_foreign_and_impossible_names_are_the_same_404(site, admin, client, published, path):
    with site.client(make_unit(admin).key) as stranger:
        names = [published, f"{published}@1", f"{published}:default", "never-was", "Not/A Name", f"{published}@999"]
        answers = [stranger.post(path, json=named(path, name)) for name in names]
    assert {answer.status_code for answer in answers} == {404}
    shapes = {
        str(answer.json()).replace(name.removesuffix(":default"), "NAME")
        for answer, name in zip(answers, names, strict=True)
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("path", LORAX)
def test_lorax_errors_are_of_the_type_that_its_client_knows(client, path):
    answer = client.post(path, json={"inputs": "", "parameters": {}})
    assert answer.status_code == 400
    assert answer.json()["error_type"] == "validation"
    assert "inputs" in answer.json()["error"]


@pytest.mark.parametrize("path", OPENAI)
def test_openai_errors_name_the_field(client, path):
    answer = client.post(path, json=ROUTES[path] | {"priority": 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "priority"
    assert answer.json()["error"]["code"] == "unsupported_field"


@pytest.mark.parametrize("path", ANTHROPIC)
def test_anthropics_errors_have_its_envelope_and_header(client, path):
    refused = client.post(path, json=ROUTES[path] | {"priority": 1})
    assert (refused.status_code, refused.json()) == (
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "The field priority is not supported."},
        },
    )
    assert refused.headers["request-id"] == refused.headers["x-request-id"]
    absent = client.post(path, json=ROUTES[path] | {"model": "absent"}, headers={"x-request-id": "mine"})
    assert (absent.status_code, absent.json()["error"]["type"]) == (404, "not_found_error")
    assert (absent.headers["request-id"], absent.headers["x-client-request-id"]) == (
        absent.headers["x-request-id"],
        "mine",
    )


def test_a_stored_response_is_a_404_that_says_so(site, client):
    answer = client.get("/v1/responses/resp_1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "this server stores none" in answer.json()["error"]["message"]
    with site.client(None) as anonymous:
        assert anonymous.get("/v1/responses/resp_1").status_code == 401


def test_without_a_tokenizer_the_routes_say_so(client):
    """The base of these tests has no tokenizer."""
    for path in ("/v1/tokenize", "/v1/detokenize", "/v1/messages/count_tokens"):
        refused = client.post(path, json=ROUTES[path])
        assert refused.status_code == 400
        assert "cannot load the tokenizer" in refused.text


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"a": NaN}', b"\xff"])
def test_bodies_that_are_no_json_object(client, path, raw):
    assert client.post(path, content=raw).status_code == 400


@pytest.mark.parametrize("path", OPENAI)
def test_two_names_must_agree(client, path):
    answer = client.post(path, json=ROUTES[path] | {"model": "one", "adapter_id": "two"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "adapter_id"


@pytest.mark.parametrize("path", OPENAI)
@pytest.mark.parametrize("value", [5, ["a"], {"a": 1}, True])
def test_a_name_is_a_string(client, path, value):
    answer = client.post(path, json=ROUTES[path] | {"model": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"


def test_a_tenant_sees_the_base_and_its_own_models(site, admin, client, unit, published):
    base, own = client.get("/v1/models").json()["data"]
    assert base == {
        "id": "tiny-llama", "object": "model", "created": base["created"], "owned_by": "tenora", "root": "tiny-llama",
        "parent": None,
    }  # fmt: skip
    assert own == {
        "id": published, "object": "model", "created": own["created"], "owned_by": unit.slug,
        "root": f"{published}@1", "parent": "tiny-llama",
    }  # fmt: skip
    with site.client(make_unit(admin).key) as stranger:
        assert [model["id"] for model in stranger.get("/v1/models").json()["data"]] == ["tiny-llama"]


def test_one_model_by_every_name(client, published):
    listed = client.get("/v1/models").json()["data"]
    assert [client.get(f"/v1/models/{model['id']}").json() for model in listed] == listed
    for name in (f"{published}@1", f"{published}:default"):
        model = client.get(f"/v1/models/{name}").json()
        assert (model["id"], model["root"]) == (name, f"{published}@1")


def test_one_model_that_is_not_there_or_another_tenant_s(site, admin, client, published):
    with site.client(make_unit(admin).key) as stranger:
        for name in (published, f"{published}@1", "never-was", "no/such", "a b"):
            assert stranger.get(f"/v1/models/{name}").status_code == 404
    assert client.get(f"/v1/models/{published}@2").status_code == 404


def test_models_need_the_scope(site, admin, unit):
    answer = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "x", "scopes": ["adapters:read"]})
    with site.client(answer.json()["key"]) as reader:
        assert reader.get("/v1/models").status_code == 403

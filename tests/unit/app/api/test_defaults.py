"""Adapter defaults over HTTP: permissions, and no trace of a refused default."""

import json

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def publish(client: httpx.Client, unit: Unit, files: PeftFiles, defaults: object) -> httpx.Response:
    options = ("options", json.dumps({"defaults": defaults}).encode())
    return client.post(
        f"/admin/tenants/{unit.slug}/adapters/pricing/versions", files={**parts(files), "options": options}
    )


def patch(client: httpx.Client, unit: Unit, defaults: object, number: int = 1) -> httpx.Response:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing/versions/{number}"
    return client.patch(path, json={"defaults": defaults})


def kept(client: httpx.Client, unit: Unit) -> object:
    answer = client.get(f"/admin/tenants/{unit.slug}/adapters/pricing/versions/1")
    return answer.json()["defaults"] if answer.status_code == 200 else answer.status_code


def refusal(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_tenant_sets_defaults_but_no_template(site: Site, unit: Unit, admin: httpx.Client, files: PeftFiles) -> None:
    with site.client(unit.key) as tenant:
        answer = publish(tenant, unit, files, {"chat_template": TEMPLATE})
        assert refusal(answer) == (403, "insufficient_scope", "defaults.chat_template")
        assert kept(admin, unit) == 404
        assert publish(tenant, unit, files, {"system_prompt": "Be short.", "stop": "END"}).status_code == 201
        assert refusal(patch(tenant, unit, {"chat_template": TEMPLATE})) == (
            403,
            "insufficient_scope",
            "defaults.chat_template",
        )
    assert kept(admin, unit) == {"system_prompt": "Be short.", "stop": ["END"]}


def test_an_administrators_template_survives_tenant_changes(
    site: Site, unit: Unit, admin: httpx.Client, files: PeftFiles
) -> None:
    assert publish(admin, unit, files, {"chat_template": TEMPLATE, "temperature": 0.5}).status_code == 201
    with site.client(unit.key) as tenant:
        assert patch(tenant, unit, {"temperature": 0.25}).status_code == 200
        assert kept(tenant, unit) == {"chat_template": TEMPLATE, "temperature": 0.25}
        assert refusal(patch(tenant, unit, {"prompt_format": "mistral"}))[2] == "defaults.prompt_format"
    assert patch(admin, unit, {"prompt_format": "mistral"}).status_code == 200
    assert kept(admin, unit) == {"prompt_format": "mistral"}


@pytest.mark.parametrize(
    ("defaults", "param", "message"),
    [
        ({"chat_template": "a\n{% if %}"}, "defaults.chat_template", "line 2"),
        ({"chat_template": ENDLESS}, "defaults.chat_template", "more than 0.5 s"),
        ({"chat_template": "{{ 'a' * 10 ** 9 }}"}, "defaults.chat_template", "memory"),
        ({"chat_template": "{{ cycler.__init__.__globals__ }}"}, "defaults.chat_template", "unsafe"),
        ({"chat_template": "hello"}, "defaults.chat_template", "user's message"),
        ({"temperature": 5}, "defaults.temperature", "from 0 to 2"),
        ({"n": 2}, "defaults.n", "fields of defaults are: chat_template, frequency_penalty"),
        ([], "defaults", "an object"),
    ],
)
def test_what_cannot_be_a_default_is_refused_and_leaves_nothing(
    unit: Unit, admin: httpx.Client, files: PeftFiles, defaults: object, param: str, message: str
) -> None:
    answer = publish(admin, unit, files, defaults)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]
    assert kept(admin, unit) == 404


def test_another_tenant_s_version_is_no_version(site: Site, unit: Unit, admin: httpx.Client, files: PeftFiles) -> None:
    assert publish(admin, unit, files, {}).status_code == 201
    with site.client(make_unit(admin).key) as stranger:
        theirs, nothing = patch(stranger, unit, {"temperature": 1}), patch(stranger, unit, {"temperature": 1}, 9)
    assert theirs.status_code == nothing.status_code
    assert theirs.json()["error"]["code"] == nothing.json()["error"]["code"]
    assert kept(admin, unit) == {}


def test_a_resumable_upload_is_refused_before_its_first_byte(admin: httpx.Client, unit: Unit) -> None:
    file = {"size": 10, "sha256": "0" * 64}
    body = {
        "files": {"adapter_config.json": file, "adapter_model.safetensors": file},
        "options": {"defaults": {"chat_template": "\n{% if %}"}},
    }
    answer = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/uploads", json=body)
    assert refusal(answer) == (400, "invalid_value", "defaults.chat_template")
    assert "line 2" in answer.json()["error"]["message"]

"""Hostile preflights: other tenants' names, keys without the scope, headers made to hurt."""

import struct

import httpx
import pytest

from tests.support.preflight import form, preflight_of
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

ROUTE = "/v1/adapters/validate"


def _header(text: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


@pytest.fixture(scope="module")
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/secret/versions", files=parts(files)).status_code == 201
    return unit


def test_another_tenants_names_look_like_unused_ones(
    site: Site, admin: httpx.Client, owner: Unit, files: PeftFiles
) -> None:
    with site.client(make_unit(admin).key) as attacker:
        taken, free = (attacker.post(ROUTE, files=preflight_of(files, adapter=name)) for name in ("secret", "unused"))
        assert taken.status_code == 200
        assert taken.json() == free.json()
        foreign = attacker.post(f"/admin/tenants/{owner.slug}/adapters/validate", files=preflight_of(files))
        absent = attacker.post("/admin/tenants/nosuch/adapters/validate", files=preflight_of(files))
    assert (foreign.status_code, absent.status_code) == (404, 404)
    assert foreign.json()["error"]["message"].replace(owner.slug, "nosuch") == absent.json()["error"]["message"]


@pytest.mark.parametrize("scopes", [["inference"], ["adapters:read"], ["usage:read"]])
def test_only_keys_that_may_publish_may_ask(
    site: Site, admin: httpx.Client, owner: Unit, files: PeftFiles, scopes: list[str]
) -> None:
    made = admin.post(f"/admin/tenants/{owner.slug}/keys", json={"name": "weak", "scopes": scopes}).json()
    with site.client(made["key"]) as weak:
        assert weak.post(ROUTE, files=preflight_of(files)).status_code == 403
    with site.client(None) as anonymous:
        assert anonymous.post(ROUTE, files=preflight_of(files)).status_code == 401


@pytest.mark.parametrize(
    ("head", "whole", "code"),
    [
        (_header(b"{" * 2**20), 2**30, "header_not_json"),
        (_header(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 2**30, "header_not_json"),
        (_header(b"", length=2**63), 2**40, "header_too_long"),
        (_header(b"", length=2**20 + 1), 2**40, "header_too_long"),
        (_header(b"{}", length=2**20), 10, "truncated"),
        (b"", 0, "truncated"),
        (b"\x80\x02abcdefgh", 10**6, "pickle_format"),
        (_header(b'{"a":{"dtype":"F32","shape":[2147483647,2147483647],"data_offsets":[0,4]}}'), 2**40, "data_layout"),
        (
            _header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[9223372036854775804,9223372036854775808]}}'),
            2**62,
            "data_layout",
        ),
        (_header(b"{" + b",".join(b'"t%d":1' % n for n in range(20_001)) + b"}"), 2**30, "too_many_tensors"),
    ],
)
def test_hostile_headers_are_reasons(
    site: Site, admin: httpx.Client, files: PeftFiles, head: bytes, whole: int, code: str
) -> None:
    with site.client(make_unit(admin).key) as attacker:
        answer = attacker.post(ROUTE, files=form(files.config, head, weights_bytes=whole))
    assert answer.status_code == 200, answer.text
    assert code in [reason["code"] for reason in answer.json()["reasons"]]
    assert answer.json()["valid"] is False
    assert not list(site.spool.glob("*/*"))


def test_parts_beyond_their_caps_are_refused(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    too_long = site.settings.limits.config_bytes + 1
    with site.client(make_unit(admin).key) as attacker:
        for config, head in ((b"{" * too_long, b""), (files.config, b"\0" * (2**20 + 9)), (b"", b"\0" * 2**22)):
            answer = attacker.post(ROUTE, files=form(config, head, weights_bytes=2**30))
            assert answer.status_code == 413, answer.text


def test_a_whole_file_of_terabytes_costs_nothing(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    """The size is announced only, so no disk holds it, not even as a hole."""
    with site.client(make_unit(admin).key) as attacker:
        answer = attacker.post(ROUTE, files=preflight_of(files, weights_bytes=2**62))
    assert [reason["code"] for reason in answer.json()["reasons"]] == ["too_large", "data_layout"]

"""Preflights over HTTP: the verdict of an upload without its weights."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.bad_adapters import BAD
from tests.support.preflight import form, head_of, preflight_of
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, parts

ROUTE = "/v1/adapters/validate"
#: Adapters whose fault is in the values of their tensors, which a preflight does not have.
IN_VALUES = {"non_finite"}


def _codes(reasons: list[dict[str, Any]]) -> list[str]:
    return [reason["code"] for reason in reasons]


@pytest.mark.parametrize("by_platform", [False, True], ids=["tenant", "platform"])
def test_a_good_adapter_is_summarised_and_nothing_is_stored(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles, by_platform: bool
) -> None:
    before = site.blobs
    body = preflight_of(files, adapter="prices", files=["README.md", "tokenizer.json", "adapter_config.json"])
    with site.client(unit.key) as own:
        caller = admin if by_platform else own
        answer = caller.post(f"/admin/tenants/{unit.slug}/adapters/validate" if by_platform else ROUTE, files=body)
        assert answer.status_code == 200, answer.text
        assert own.get("/v1/adapters").json()["data"] == []
        assert own.get("/v1/quota").json()["used"]["bytes"] == 0
    verdict = answer.json()
    assert verdict.pop("base")["name"] == "tiny-llama"
    assert len(verdict.pop("unchecked")) == 3
    assert verdict == {
        "valid": True,
        "reasons": [],
        "warnings": [],
        "version": {
            "rank": 4,
            "alpha": 8.0,
            "target_modules": ["q_proj", "v_proj"],
            "modules": 6,
            "saved_modules": [],
            "parameters": verdict["version"]["parameters"],
            "dtype": "F32",
        },
        "size_bytes": len(files.config) + len(files.weights),
        "ignored": ["README.md", "tokenizer.json"],
    }
    assert site.blobs == before
    assert not list(site.spool.glob("*/*"))


def test_it_agrees_with_the_upload_that_follows(site: Site, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        verdict = own.post(ROUTE, files=preflight_of(files)).json()
        version = own.post("/v1/adapters/prices/versions", files=parts(files)).json()
    summary = verdict["version"]
    assert summary["rank"] == version["rank"]
    assert verdict["size_bytes"] == version["size_bytes"]
    assert verdict["warnings"] == version["warnings"]
    for name in ("alpha", "target_modules", "parameters", "dtype"):
        assert summary[name] == version["provenance"][name]


@pytest.mark.parametrize(
    "name", ["feature use_dora", "unknown key of odd characters", "prefix three times", "pickle of torch", "NaN"]
)
def test_a_bad_adapter_gets_the_reasons_of_its_upload(
    site: Site, unit: Unit, files: PeftFiles, tmp_path: Path, name: str
) -> None:
    (tmp_path / "adapter_config.json").write_bytes(files.config)
    (tmp_path / "adapter_model.safetensors").write_bytes(files.weights)
    BAD[name].change(tmp_path)
    config, weights = ((tmp_path / file).read_bytes() for file in ("adapter_config.json", "adapter_model.safetensors"))
    head = head_of(weights) if weights[:1] != b"P" else weights[:8]
    with site.client(unit.key) as own:
        verdict = own.post(ROUTE, files=form(config, head, weights_bytes=len(weights))).json()
        refusal = own.post("/v1/adapters/prices/versions", files=parts(PeftFiles(config, weights)))
    assert refusal.status_code == 422
    expected = [reason for reason in refusal.json()["error"]["reasons"] if reason["code"] not in IN_VALUES]
    assert verdict["reasons"] == expected
    assert verdict["valid"] is (not expected)
    assert (verdict["version"] is None) is bool(expected)


def test_every_reason_comes_at_once(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    admin.patch(f"/admin/tenants/{unit.slug}", json={"quota": {"bytes": 10, "rank": 2}})
    config = json.loads(files.config) | {"base_model_name_or_path": "other/base"}
    body = form(json.dumps(config).encode(), head_of(files.weights), weights_bytes=len(files.weights), adapter="No!")
    with site.client(unit.key) as own:
        verdict = own.post(ROUTE, files=body).json()
    assert _codes(verdict["reasons"]) == ["invalid_name", "quota_exceeded", "quota_exceeded"]
    assert [reason["field"] for reason in verdict["reasons"][1:]] == ["quota.bytes", "quota.rank"]
    assert "the limit is 2" in verdict["reasons"][2]["message"]
    assert "trained on other/base" in verdict["warnings"][0]
    assert (verdict["valid"], verdict["version"]) == (False, None)


def test_a_file_beyond_the_cap_is_a_reason(site: Site, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        verdict = own.post(ROUTE, files=preflight_of(files, weights_bytes=2**62)).json()
    assert _codes(verdict["reasons"]) == ["too_large", "data_layout"]
    assert f"the limit of {site.settings.limits.weights_bytes} bytes" in verdict["reasons"][0]["message"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"weights_bytes": None}, "options.weights_bytes"),
        ({"weights_bytes": -1}, "options.weights_bytes"),
        ({"weights_bytes": True}, "options.weights_bytes"),
        ({"weights_bytes": 2**63}, "options.weights_bytes"),
        ({"weights_bytes": 1}, "options.weights_bytes"),
        ({"adapter": 7}, "options.adapter"),
        ({"files": "README.md"}, "options.files"),
        ({"files": ["x"] * 1001}, "options.files"),
        ({"files": ["x" * 256]}, "options.files"),
        ({"alias": "default"}, "options.alias"),
    ],
)
def test_wrong_options_are_named(
    site: Site, unit: Unit, files: PeftFiles, options: dict[str, object], param: str
) -> None:
    with site.client(unit.key) as own:
        answer = own.post(ROUTE, files=preflight_of(files, **options))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("sent", [0, 7, 8, 100])
def test_half_a_header_asks_for_the_rest(site: Site, unit: Unit, files: PeftFiles, sent: int) -> None:
    body = form(files.config, files.weights[:sent], weights_bytes=len(files.weights))
    with site.client(unit.key) as own:
        answer = own.post(ROUTE, files=body)
    assert answer.status_code == 400
    needed = 8 if sent < 8 else len(head_of(files.weights))
    assert answer.json()["error"]["message"] == (
        f"The part adapter_model.safetensors has {sent} bytes, but the file's header ends after {needed}. "
        "Send these bytes."
    )


def test_bytes_behind_the_header_do_no_harm(site: Site, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        body = form(files.config, files.weights, weights_bytes=len(files.weights))
        assert own.post(ROUTE, files=body).json()["valid"] is True


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors", "options"])
def test_missing_parts_are_named(site: Site, unit: Unit, files: PeftFiles, missing: str) -> None:
    body = {name: part for name, part in preflight_of(files).items() if name != missing}
    with site.client(unit.key) as own:
        answer = own.post(ROUTE, files=body)
    error = answer.json()["error"]
    if missing == "options":
        assert (answer.status_code, error["param"]) == (400, "options.weights_bytes")
    else:
        assert answer.status_code == 422
        assert [(reason["code"], reason["field"]) for reason in error["reasons"]] == [("missing_part", missing)]


def test_it_counts_against_limits_of_requests(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    admin.patch(f"/admin/tenants/{unit.slug}", json={"limits": {"requests_per_minute": 2, "tokens_per_day": 1}})
    with site.client(unit.key) as own:
        statuses = [
            own.post(ROUTE, files=preflight_of(files)).status_code,
            own.post(ROUTE, files=preflight_of(files, weights_bytes=-1)).status_code,
            own.post(ROUTE, files=preflight_of(files)).status_code,
        ]
    assert statuses == [200, 400, 429]


def test_an_adapter_may_have_its_name(site: Site, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        assert own.post(f"{ROUTE}/versions", files=parts(files)).status_code == 201
        assert own.get(ROUTE).json()["name"] == "validate"
        assert own.post(ROUTE, files=preflight_of(files)).json()["valid"] is True

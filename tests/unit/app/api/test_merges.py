"""Merges over HTTP: the result, its recipe, and permissions on the source versions."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load

from tests.support.peft_adapters import make_adapter
from tests.support.peft_oracle import differences, merge_by_peft, save_real_base
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

#: Seconds. The merge process imports torch and runs at low CPU priority.
PATIENCE = 300

TARGET = "/v1/adapters/merged/merges"


def _publish(client: httpx.Client, adapter: str, folder: Path) -> str:
    files = PeftFiles(
        (folder / "adapter_config.json").read_bytes(), (folder / "adapter_model.safetensors").read_bytes()
    )
    answer = client.post(f"/v1/adapters/{adapter}/versions", files=parts(files))
    assert answer.status_code == 201, answer.text
    return f"{adapter}@{answer.json()['version']}"


def _body(*versions: str, **changes: Any) -> dict[str, Any]:
    return {"sources": [{"version": version, "weight": 0.5} for version in versions], "method": "linear"} | changes


@pytest.fixture
def folders(tmp_path: Path, unit: Unit) -> list[Path]:
    seeds = [int(unit.slug[-8:], 16) % 2**31 + number for number in (1, 2)]
    return [make_adapter(tmp_path / str(seed), seed=seed) for seed in seeds]


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        client.timeout = PATIENCE
        yield client


def test_a_merge_is_a_version_with_its_recipe(
    site: Site, client: httpx.Client, unit: Unit, folders: list[Path], tmp_path: Path
) -> None:
    first, second = (_publish(client, f"source-{number}", folder) for number, folder in enumerate(folders))
    recipe = {"method": "dare_ties", "density": 0.6, "majority_sign_method": "frequency"}
    body = _body(first, second, **recipe, options={"alias": "trial", "labels": {"kind": "merge"}})
    answer = client.post(TARGET, json=body)
    assert answer.status_code == 201, answer.text
    version = answer.json()
    assert answer.headers["location"] == "/v1/adapters/merged/versions/1"
    assert (version["name"], version["state"], version["aliases"]) == ("merged@1", "ready", ["trial"])
    assert version["labels"] == {"kind": "merge"}
    source = version["provenance"]["source"]
    kept = source["recipe"]
    assert source["kind"] == "merge"
    assert [item["version"] for item in kept["sources"]] == [first, second]
    assert [item["digest"] for item in kept["sources"]] == [
        client.get(f"/v1/adapters/source-{number}/versions/1").json()["digest"] for number in range(2)
    ]
    assert {name: kept[name] for name in recipe} == recipe
    assert kept["libraries"].keys() == {"peft", "torch"}
    # The recipe suffices to reproduce the tensors.
    base = save_real_base(tmp_path / "base")
    expected = merge_by_peft(base, folders, (0.5, 0.5), recipe | {"seed": kept["seed"]}, tmp_path / "peft")
    assert differences(load(_weights(site, expected)), expected) == []
    again = client.post(TARGET, json=body | {"seed": kept["seed"]})
    assert (again.status_code, again.json()["version"]) == (200, 1)
    assert not list(site.spool.glob("*/*"))


def _weights(site: Site, expected: dict[str, Any]) -> bytes:
    """Return the newest blob that holds these tensors."""
    blobs = sorted((site.settings.home / "blobs" / "sha256").glob("*/*"), key=lambda path: path.stat().st_mtime)
    name = next(iter(expected)).encode()
    return next(content for path in reversed(blobs) if name in (content := path.read_bytes()))


def test_one_merge_of_a_tenant_at_a_time(site: Site, unit: Unit, client: httpx.Client, folders: list[Path]) -> None:
    versions = [_publish(client, "source", folder) for folder in folders]
    refused = threading.Event()

    def merge(method: str) -> httpx.Response:
        with site.client(unit.key) as own:
            answer = own.post(TARGET, json=_body(*versions, method=method), timeout=PATIENCE)
        if answer.status_code != 201:
            refused.set()
        return answer

    # Hold the first merge at its smoke check until the other one is refused.
    site.engine.may_smoke.clear()
    try:
        with ThreadPoolExecutor(2) as threads:
            answers = [threads.submit(merge, method) for method in ("linear", "cat")]
            assert refused.wait(PATIENCE)
            site.engine.may_smoke.set()
            done = sorted((answer.result() for answer in answers), key=lambda answer: answer.status_code)
    finally:
        site.engine.may_smoke.set()
    assert [answer.status_code for answer in done] == [201, 503]
    assert done[1].json()["error"]["code"] == "busy"
    assert int(done[1].headers["retry-after"]) > 0


def test_foreign_versions_look_nonexistent(
    site: Site, admin: httpx.Client, unit: Unit, client: httpx.Client, folders: list[Path]
) -> None:
    own = _publish(client, "source", folders[0])
    other = make_unit(admin)
    with site.client(other.key) as stranger:
        _publish(stranger, "secret", folders[1])
        _publish(stranger, "source", folders[1])
    foreign = client.post(TARGET, json=_body(own, "secret@1"))
    nothing = client.post(TARGET, json=_body(own, "absent@1"))
    assert (foreign.status_code, nothing.status_code) == (404, 404)
    assert foreign.text.replace("secret", "absent") == nothing.text
    assert client.get("/v1/adapters/merged").status_code == 404


def test_tenant_and_platform_keys_merge_versions(
    site: Site, admin: httpx.Client, unit: Unit, client: httpx.Client
) -> None:
    other = make_unit(admin)
    path = f"/admin/tenants/{unit.slug}/adapters/merged/merges"
    with site.client(other.key) as stranger:
        answer = stranger.post(path, json=_body("a@1", "a@2"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "tenant")
    # Both callers reach the look-up of the source versions, which do not exist.
    for asking in (client, admin):
        answer = asking.post(path, json=_body("a@1", "a@2"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def test_a_retired_source_is_refused(client: httpx.Client, folders: list[Path]) -> None:
    versions = [_publish(client, "source", folder) for folder in folders]
    retired = client.post("/v1/adapters/source/versions/1/retire", json={"reason": "too old"})
    assert retired.status_code == 200, retired.text
    answer = client.post(TARGET, json=_body(*versions))
    assert answer.status_code == 410
    assert "too old" in answer.json()["error"]["message"]


def test_what_cannot_be_merged_is_said_with_every_reason(
    client: httpx.Client, unit: Unit, folders: list[Path], tmp_path: Path
) -> None:
    first = _publish(client, "source", folders[0])
    seed = int(unit.slug[-8:], 16) % 2**31
    other = make_adapter(tmp_path / "other", seed=seed, r=8, layers_to_transform=[0], target_modules=["q_proj"])
    second = _publish(client, "source", other)
    answer = client.post(TARGET, json=_body(first, second))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "merge_rejected")
    assert [(reason["code"], reason["field"]) for reason in error["reasons"]] == [
        ("targets_mismatch", "layers_to_transform"),
        ("rank_mismatch", "sources"),
    ]


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"method": "ties"}, 422, "density"),
        ({"method": 5}, 422, "method"),
        ({"sources": "a@1"}, 422, "sources"),
        ({"weights": [1]}, 422, "weights"),
        ({"options": {"alias": "no such grammar!"}}, 422, "alias"),
        ({"options": {"surprise": 1}}, 400, "options.surprise"),
    ],
    ids=str,
)
def test_bodies_that_are_wrong(client: httpx.Client, changes: dict[str, Any], status: int, field: str) -> None:
    answer = client.post(TARGET, json=_body("a@1", "a@2") | changes)
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert field in ([reason["field"] for reason in error.get("reasons", [])] or [error["param"]])


def test_numbers_that_json_does_not_have(client: httpx.Client) -> None:
    body = json.dumps(_body("a@1", "a@2")).replace("0.5", "NaN", 1)
    answer = client.post(TARGET, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"]["reasons"][0]["field"] == "sources.0.weight"

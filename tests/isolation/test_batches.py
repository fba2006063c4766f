"""Batches of one tenant are out of reach of another: ids, files, models, events, lists and caps."""

import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.batch_admission import CHAT, jsonl, line
from tests.support.batch_calls import ABSENT_BATCH, create, validated
from tests.support.file_calls import ABSENT_FILE
from tests.support.file_calls import create as create_file
from tests.support.serving import PeftFiles, save_base
from tests.support.site import Site, Unit, make_unit, parts, running_site


@pytest.fixture(scope="module")
def victim(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Tenant with two adapters, which it does not share."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        for adapter in ("prices", "margins"):
            assert own.post(f"/v1/adapters/{adapter}/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture
def attacker(site: Site, admin: httpx.Client) -> Iterator[httpx.Client]:
    with site.client(make_unit(admin).key) as client:
        yield client


def like_absent(answer: httpx.Response, identity: str) -> tuple[int, Any]:
    """Return status and body, without the id and what differs between any two answers."""
    return answer.status_code, answer.text.replace(identity, "ID")


def test_another_tenants_batch_is_like_one_that_does_not_exist(
    site: Site, victim: Unit, attacker: httpx.Client
) -> None:
    with site.client(victim.key) as own:
        batch = create(own, [line(1)])["id"]
    for method, path in (("GET", "/v1/batches/{}"), ("POST", "/v1/batches/{}/cancel"), ("GET", "/v1/batches?after={}")):
        found = like_absent(attacker.request(method, path.format(batch)), batch)
        assert found == like_absent(attacker.request(method, path.format(ABSENT_BATCH)), ABSENT_BATCH)
        assert found[0] == 404
    assert attacker.get("/v1/batches").json()["data"] == []
    assert attacker.get("/admin/batches").status_code == 403
    with site.client(victim.key) as own:
        assert own.get(f"/v1/batches/{batch}").json()["status"] != "cancelled"


def test_another_tenants_file_is_like_one_that_does_not_exist(site: Site, victim: Unit, attacker: httpx.Client) -> None:
    with site.client(victim.key) as own:
        file = create_file(own, jsonl([line(1)]))["id"]
    answers = [
        like_absent(
            attacker.post("/v1/batches", json={"input_file_id": one, "endpoint": CHAT, "completion_window": "24h"}), one
        )
        for one in (file, ABSENT_FILE)
    ]
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_an_adapter_that_is_not_shared_does_not_exist(victim: Unit, attacker: httpx.Client) -> None:
    forms = ["{}/prices", "{}/prices:default", "{}/prices@1", "{}/prices@7"]
    foreign, absent = ([form.format(slug) for form in forms] for slug in (victim.slug, "unknown"))
    batch = validated(
        attacker, create(attacker, [line(n, model=name) for n, name in enumerate(foreign + absent)])["id"]
    )
    assert batch["status"] == "failed"
    problems = [(problem["code"], problem["param"], problem["message"]) for problem in batch["errors"]["data"]]
    assert problems[4:] == [
        ("not_found", "body.model", f"There is no model {name.removesuffix(':default')!r}.") for name in absent
    ]
    assert [(*rest, text.replace(victim.slug, "unknown")) for *rest, text in problems[:4]] == problems[4:]
    body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    for name in foreign + absent:
        told = (404, f"There is no model {name.removesuffix(':default')!r}.")
        answer = attacker.post("/v1/batches", json=body | {"tenora": {"model": name}})
        assert (answer.status_code, answer.json()["error"]["message"]) == told
        # A batch says no more than the route.
        chat = attacker.post(CHAT, json=line(1, model=name)["body"])
        assert (chat.status_code, chat.json()["error"]["message"]) == told


def test_refused_names_in_lines_are_in_the_audit_trail(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with running_site(tmp_path / "home", save_base(tmp_path / "base")) as site:
        with site.client(site.admin_key) as admin:
            unit = make_unit(admin)
        with site.client(unit.key) as own:
            lines = [line(n, model=name) for n, name in enumerate(["mining/gold", "mining/gold", "typo"])]
            assert validated(own, create(own, lines)["id"])["status"] == "failed"
    with sqlite3.connect(site.settings.home / "tenora.db") as database:
        [(actor, after)] = database.execute("select actor, after from audit where action = 'key.refuse'").fetchall()
    assert actor == unit.key.split("_")[1]
    # Once for a batch, and a missing name of the tenant's own never.
    assert json.loads(after) == {"count": 1, "of": {"There is no model 'mining/gold'.": 1}}


def test_a_restricted_key_reaches_no_other_model(site: Site, admin: httpx.Client, victim: Unit) -> None:
    body = {"name": uuid.uuid4().hex, "scopes": ["inference", "batch"], "adapters": ["prices"]}
    key = admin.post(f"/admin/tenants/{victim.slug}/keys", json=body).json()["key"]
    names = ["margins", "margins@1", "margins:default", f"{victim.slug}/margins", "tiny-llama", None]
    lines = [line(n, **({} if name is None else {"model": name})) for n, name in enumerate(names)]
    with site.client(key) as client:
        batch = validated(client, create(client, lines)["id"])
        assert [problem["code"] for problem in batch["errors"]["data"]] == ["insufficient_scope"] * len(names)
        allowed = validated(client, create(client, [line(1, model="prices")])["id"])
        assert allowed["errors"] is None
        file = batch["input_file_id"]
        answer = client.post(
            "/v1/batches",
            json={
                "input_file_id": file,
                "endpoint": CHAT,
                "completion_window": "24h",
                "tenora": {"model": "margins"},
            },
        )
        assert answer.status_code == 403


def test_a_key_outside_its_networks_creates_no_batch(site: Site, admin: httpx.Client, victim: Unit) -> None:
    body = {"name": uuid.uuid4().hex, "scopes": ["inference", "batch"], "addresses": ["203.0.113.0/24"]}
    key = admin.post(f"/admin/tenants/{victim.slug}/keys", json=body).json()["key"]
    with site.client(key) as client:
        for method, path in (("POST", "/v1/batches"), ("GET", "/v1/batches"), ("GET", f"/v1/batches/{ABSENT_BATCH}")):
            assert client.request(method, path, json={}).status_code == 403


def test_the_caps_of_one_tenant_do_not_block_another(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    caps = {"open_batches": 3, "waiting_lines": 4}
    with (
        running_site(tmp_path_factory.mktemp("home"), base, batch=caps) as site,
        site.client(site.admin_key) as admin,
        site.client(make_unit(admin).key) as greedy,
        site.client(make_unit(admin).key) as modest,
    ):
        for _ in range(2):
            batch = validated(greedy, create(greedy, [line(1), line(2)])["id"])
            assert batch["errors"] is None
        body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        refused = greedy.post("/v1/batches", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_open")
        assert "4 waiting lines; the limit is 4" in refused.text
        assert validated(modest, create(modest, [line(1), line(2)])["id"])["errors"] is None


def test_a_batch_says_nothing_of_a_shared_adapters_budget(site: Site, admin: httpx.Client, victim: Unit) -> None:
    """The checked batch and its quote are the same, whatever the owner allows."""
    recipient, answers = make_unit(admin), []
    with site.client(victim.key) as own, site.client(recipient.key) as client:
        assert own.put(f"/v1/adapters/prices/shares/{recipient.slug}").status_code == 201
        for allowed in (None, 0, 20, 10**9):
            assert own.patch("/v1/adapters/prices", json={"limits": {"tokens_per_day": allowed}}).status_code == 200
            lines = [line(number, model=f"{victim.slug}/prices") for number in range(5)]
            batch = validated(client, create(client, lines, completion_window="10m")["id"])
            quote = batch["tenora"]["quote"] | {"expected_s": None}
            answers.append((batch["status"], batch["errors"], batch["request_counts"]["total"], quote))
            assert client.post(f"/v1/batches/{batch['id']}/cancel").is_success
        assert own.patch("/v1/adapters/prices", json={"limits": None}).status_code == 200
    assert answers == [answers[0]] * 4
    assert answers[0][:3] == ("in_progress", None, 5)

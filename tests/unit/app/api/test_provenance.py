"""Provenance and descriptions of versions over HTTP, list filters, and quotas."""

import json
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, select, update

from app.database.tables import audit, versions
from app.served_base import open_base
from app.services.catalog.labels import MAX_CARD_BYTES
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

CARD = "# Prices\n\n<script>alert(1)</script> & <b>bold</b> \x1b[31m \u202e\n"


def publish(client: httpx.Client, path: str, files: PeftFiles, **options: object) -> httpx.Response:
    return client.post(f"{path}/versions", files={**parts(files), "options": (None, json.dumps(options))})


def published(client: httpx.Client, path: str, files: PeftFiles, **options: object) -> dict[str, Any]:
    answer = publish(client, path, files, **options)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def sqlite(site: Site) -> str:
    return f"sqlite:///{site.settings.home / 'tenora.db'}"


def trail(site: Site, tenant: str) -> list[tuple[Any, ...]]:
    engine = create_engine(sqlite(site))
    with engine.connect() as connection:
        columns = (audit.c.action, audit.c.subject, audit.c.before, audit.c.after)
        rows = connection.execute(select(*columns).where(audit.c.tenant == tenant).order_by(audit.c.id)).all()
    engine.dispose()
    return [tuple(row) for row in rows]


def test_where_a_version_comes_from(site: Site, unit: Unit, files: PeftFiles) -> None:
    base = open_base(site.settings)
    with site.client(unit.key) as own:
        version = published(
            own,
            "/v1/adapters/pricing",
            files,
            labels={"team": "x"},
            card=CARD,
            training_run="https://runs.example/7",
        )
        assert own.get("/v1/adapters/pricing/versions/1").json() == version
    config = json.loads(files.config)
    found = version["provenance"]
    assert found | {"uploaded_at": None, "source": None, "target_modules": None} == {
        "uploaded_by": unit.key.split("_")[1],
        "uploaded_by_name": "test",
        "uploaded_at": None,
        "uploaded_from": "127.0.0.1",
        "source": None,
        "training_run": "https://runs.example/7",
        "peft_version": config["peft_version"],
        "alpha": config["lora_alpha"],
        "target_modules": None,
        "parameters": sum(_elements(files)),
        "dtype": "F32",
        "base": {"name": base.name, "digest": f"sha256:{base.digest}"},
    }
    assert found["uploaded_at"] == version["created_at"]
    assert found["source"]["kind"] == "upload"
    assert {module.rsplit(".")[-1] for module in found["target_modules"]} == {"q_proj", "v_proj"}
    assert (version["labels"], version["card"], version["defaults"]) == ({"team": "x"}, CARD, {})
    assert (version["state"], version["state_reason"]) == ("ready", None)


def _elements(files: PeftFiles) -> list[int]:
    length = int.from_bytes(files.weights[:8], "little")
    header = json.loads(files.weights[8 : 8 + length])
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    return [rows * columns for rows, columns in shapes]


def test_a_card_is_served_as_json_and_never_as_html(site: Site, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        published(own, "/v1/adapters/pricing", files, card=CARD)
        for path in ("/v1/adapters/pricing/versions/1", "/v1/adapters/pricing/versions"):
            answer = own.get(path, headers={"accept": "text/html"})
            assert answer.headers["content-type"] == "application/json"
            assert CARD in json.dumps(answer.json(), ensure_ascii=False).replace("\\n", "\n").replace("\\u001b", "\x1b")


def test_a_version_is_described_anew_and_the_trail_says_how(site: Site, unit: Unit, files: PeftFiles) -> None:
    path = "/v1/adapters/pricing/versions/1"
    with site.client(unit.key) as own:
        first = published(own, "/v1/adapters/pricing", files, labels={"team": "x", "tier": "gold"})
        changes = {"labels": {"team": "y"}, "card": CARD, "training_run": "https://runs.example/7"}
        answer = own.patch(path, json=changes)
        assert answer.status_code == 200, answer.text
        described = answer.json()
        assert {field: described[field] for field in ("labels", "card")} == {"labels": {"team": "y"}, "card": CARD}
        assert described["provenance"] == first["provenance"] | {"training_run": "https://runs.example/7"}
        assert own.get(path).json() == described
        # An empty or unchanged patch changes nothing and writes no audit row.
        assert own.patch(path, json={}).json() == described
        assert own.patch(path, json=changes).json() == described
        defaults = own.patch(path, json={"defaults": {"temperature": 0.5}}).json()
        assert defaults == described | {"defaults": {"temperature": 0.5}}
        cleared = own.patch(path, json={"labels": {}, "card": "", "training_run": None, "defaults": {}}).json()
        assert cleared == first | {"labels": {}}
    changed = [row[1:] for row in trail(site, unit.slug) if row[0] == "version.describe"]
    card = {"bytes": len(CARD.encode()), "sha256": changed[0][2]["card"]["sha256"]}
    assert [row[0] for row in changed] == ["pricing@1"] * 3
    assert changed[0][2] == {"labels": {"team": "y"}, "card": card, "training_run": "https://runs.example/7"}
    assert changed[0][1]["labels"] == {"team": "x", "tier": "gold"}
    assert changed[1][1:] == ({"defaults": {}}, {"defaults": {"temperature": 0.5}})
    assert changed[2][1]["card"] == card


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"labels": {"Team": "x"}}, 400, "labels"),
        ({"labels": {"team": "a\nb"}}, 400, "labels.team"),
        ({"labels": None}, 400, "labels"),
        ({"labels": {"team": 3}}, 422, "labels.team"),
        ({"labels": "team=x"}, 422, "labels"),
        ({"card": None}, 400, "card"),
        ({"card": "a\0b"}, 400, "card"),
        ({"card": "x" * (MAX_CARD_BYTES + 1)}, 400, "card"),
        ({"training_run": "javascript:alert(1)"}, 400, "training_run"),
        ({"training_run": "https://me:secret@runs.example/"}, 400, "training_run"),
        ({"defaults": {"nonsense": 1}}, 400, "defaults.nonsense"),
        ({"defaults": {"chat_template": "{{ messages }}"}}, 403, "defaults.chat_template"),
        ({"state": "ready"}, 422, "state"),
        ({"rank": 1, "card": "x"}, 422, "rank"),
        ([], 422, None),
    ],
)
def test_what_cannot_be_said(
    site: Site, unit: Unit, files: PeftFiles, changes: object, status: int, param: str | None
) -> None:
    with site.client(unit.key) as own:
        before = published(own, "/v1/adapters/pricing", files)
        answer = own.patch("/v1/adapters/pricing/versions/1", json=changes)
        assert (answer.status_code, answer.json()["error"]["param"] if param else param) == (status, param), answer.text
        assert "secret" not in answer.text
        assert own.get("/v1/adapters/pricing/versions/1").json() == before


def test_only_the_owner_s_writers_describe(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing/versions/1"
    published(admin, path.removesuffix("/versions/1"), files)
    scopes = {"name": "reader", "scopes": ["adapters:read", "inference"]}
    reader = admin.post(f"/admin/tenants/{unit.slug}/keys", json=scopes).json()["key"]
    with site.client(reader) as narrow, site.client(make_unit(admin).key) as stranger:
        assert narrow.patch("/v1/adapters/pricing/versions/1", json={"card": "x"}).status_code == 403
        for mine in ("/v1/adapters/pricing/versions/1", path):
            assert stranger.patch(mine, json={"card": "x"}).status_code == 404
    assert admin.patch(path, json={"card": "x"}).json()["card"] == "x"
    assert admin.patch(path.replace("/1", "/2"), json={"card": "x"}).status_code == 404


def test_a_tenants_change_keeps_the_administrators_template(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing"
    published(admin, path, files)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    answer = admin.patch(f"{path}/versions/1", json={"defaults": {"chat_template": template}})
    assert answer.status_code == 200, answer.text
    with site.client(unit.key) as own:
        defaults = {"chat_template": template, "temperature": 0.5}
        assert own.patch(f"{path}/versions/1", json={"defaults": defaults}).json()["defaults"] == defaults
        other = {"defaults": {"chat_template": template + " "}}
        assert own.patch(f"{path}/versions/1", json=other).status_code == 403
    broken = admin.patch(f"{path}/versions/1", json={"defaults": {"chat_template": "{{ nothing"}})
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "defaults.chat_template")


def test_lists_are_narrowed_by_label_state_and_base(
    site: Site, unit: Unit, files: PeftFiles, other_files: PeftFiles
) -> None:
    base = open_base(site.settings)
    with site.client(unit.key) as own:
        published(own, "/v1/adapters/pricing", files, labels={"team": "x", "tier": "gold"})
        published(own, "/v1/adapters/pricing", other_files, labels={"team": "y"})
        published(own, "/v1/adapters/quotes", files, labels={"team": "y"})

        def names(query: str) -> list[str]:
            return [adapter["name"] for adapter in own.get(f"/v1/adapters?{query}").json()["data"]]

        def numbers(query: str) -> list[int]:
            return [v["version"] for v in own.get(f"/v1/adapters/pricing/versions?{query}").json()["data"]]

        assert (names("label=team%3Dx"), numbers("label=team%3Dx")) == (["pricing"], [1])
        assert (names("label=team=y"), numbers("label=team=y")) == (["pricing", "quotes"], [2])
        assert (names("label=team=y&label=tier=gold"), numbers("label=team=y&label=tier=gold")) == ([], [])
        assert names("label=team=x&label=tier=gold&state=ready") == ["pricing"]
        assert (names("state=retired"), numbers("state=ready")) == ([], [2, 1])
        assert names(f"base={base.name}") == names(f"base=sha256:{base.digest}") == ["pricing", "quotes"]
        assert names("base=another") == []
        first = own.get("/v1/adapters?label=team=y&limit=1").json()
        assert names(f"label=team=y&limit=1&cursor={first['next_cursor']}") == ["quotes"]
        for query, param in (("label=team", "label"), ("state=gone", "state"), ("base=", "base")):
            answer = own.get(f"/v1/adapters?{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_version_of_another_base_is_refused_by_name(site: Site, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        version = published(own, "/v1/adapters/pricing", files)
        engine = create_engine(sqlite(site))
        with engine.begin() as connection:
            here = versions.c.digest == version["digest"].removeprefix("sha256:")
            connection.execute(update(versions).where(here).values(base_name="older-llama", base_digest="c" * 64))
        engine.dispose()
        for path, body in (
            ("/v1/completions", {"model": "pricing", "prompt": "x"}),
            ("/v1/completions", {"model": "pricing@1", "prompt": "x"}),
            ("/v1/chat/completions", {"model": "pricing", "messages": [{"role": "user", "content": "x"}]}),
            ("/v1/responses", {"model": "pricing", "input": "x"}),
            ("/v1/tokenize", {"model": "pricing", "prompt": "x"}),
        ):
            answer = own.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "wrong_base")
            for word in ("pricing@1", "older-llama", "c" * 12, open_base(site.settings).name):
                assert word in answer.json()["error"]["message"]
        lorax = own.post("/generate", json={"inputs": "x", "parameters": {"adapter_id": "pricing"}})
        assert lorax.status_code == 409
        assert "older-llama" in lorax.json()["error"]


def test_a_quota_is_set_shown_and_kept(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles
) -> None:
    tenant = f"/admin/tenants/{unit.slug}"
    unlimited = dict.fromkeys(("adapters", "versions", "bytes", "rank", "pinned_slots"))
    assert admin.get(tenant).json()["quota"] == unlimited
    changed = admin.patch(tenant, json={"quota": {"versions": 1, "rank": 8}})
    assert changed.json()["quota"] == unlimited | {"versions": 1, "rank": 8}
    assert admin.patch(tenant, json={"name": "Unit"}).json()["quota"]["versions"] == 1
    with site.client(unit.key) as own:
        version = published(own, "/v1/adapters/pricing", files)
        used = {"adapters": 1, "versions": 1, "bytes": version["size_bytes"], "rank": 4, "pinned_slots": 0}
        assert own.get("/v1/quota").json() == {"quota": changed.json()["quota"], "used": used}
        assert admin.get(tenant).json()["used"] == used
        refused = publish(own, "/v1/adapters/pricing", other_files)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_exceeded")
        assert "versions would be 2 (limit 1)" in refused.json()["error"]["message"]
        # A retry of a published upload creates no version, so the quota allows it.
        assert publish(own, "/v1/adapters/pricing", files).status_code == 200
        # The quota refuses a new adapter before its bytes are read.
        early = own.post("/v1/adapters/quotes/versions", content=b"no multipart at all")
        assert (early.status_code, early.json()["error"]["param"]) == (403, "versions")
        assert own.patch(tenant, json={"quota": None}).status_code == 403
        assert [adapter["name"] for adapter in own.get("/v1/adapters").json()["data"]] == ["pricing"]
        assert admin.patch(tenant, json={"quota": None}).json()["quota"] == unlimited
        assert publish(own, "/v1/adapters/pricing", other_files).status_code == 201
    assert admin.get("/v1/quota").status_code == 403
    row = next(row for row in trail(site, unit.slug) if row[0] == "tenant.update")
    assert row[3]["quota"] == {"versions": 1, "rank": 8}


def test_adapters_and_ranks_have_quotas_too(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    admin.patch(f"/admin/tenants/{unit.slug}", json={"quota": {"adapters": 2, "bytes": 10**9}})
    made = [publish(admin, f"/admin/tenants/{unit.slug}/adapters/a{number}", files) for number in range(3)]
    assert [answer.status_code for answer in made] == [201, 201, 403]
    assert made[2].json()["error"]["param"] == "adapters"
    admin.patch(f"/admin/tenants/{unit.slug}", json={"quota": {"adapters": None, "rank": 2}})
    refused = publish(admin, f"/admin/tenants/{unit.slug}/adapters/a3", files)
    assert "rank would be 4 (limit 2)" in refused.json()["error"]["message"]
    assert admin.get(f"/admin/tenants/{unit.slug}/adapters/a3").status_code == 404


@pytest.mark.parametrize(
    ("quota", "status", "param"),
    [
        ({"adapters": -1}, 400, "quota.adapters"),
        ({"adapters": 2**63}, 400, "quota.adapters"),
        ({"adapters": "1"}, 422, "quota.adapters"),
        ({"adapters": 1.5}, 422, "quota.adapters"),
        ({"adapters": True}, 422, "quota.adapters"),
        ({"adaptors": 1}, 422, "quota.adaptors"),
        ([], 422, "quota"),
    ],
)
def test_what_is_no_quota(admin: httpx.Client, unit: Unit, quota: object, status: int, param: str) -> None:
    answer = admin.patch(f"/admin/tenants/{unit.slug}", json={"quota": quota})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text

"""Refusals are audited: requests for another tenant's objects or beyond a key's scope.

It makes no difference whether the object exists.
"""

import sqlite3
from pathlib import Path

from tests.support.serving import PeftFiles, save_base
from tests.support.site import parts, running_site


def test_every_refusal_is_in_the_trail_once_the_server_has_ended(tmp_path: Path, files: PeftFiles) -> None:
    (tmp_path / "home").mkdir()
    with running_site(tmp_path / "home", save_base(tmp_path / "base")) as site:
        with site.client(site.admin_key) as admin:
            keys = {}
            for slug in ("retail", "mining"):
                assert admin.post("/admin/tenants", json={"slug": slug}).status_code == 201
                made = admin.post(f"/admin/tenants/{slug}/keys", json={"name": "app", "scopes": ["inference"]})
                keys[slug] = made.json()["key"]
            for name in ("only-pricing", "at-home"):
                restricted = {"adapters": ["pricing"]} if name == "only-pricing" else {"addresses": ["192.0.2.0/24"]}
                made = admin.post("/admin/tenants/retail/keys", json={"name": name, **restricted})
                assert made.status_code == 201, made.text
                keys[name] = made.json()["key"]
            published = admin.post("/admin/tenants/mining/adapters/gold/versions", files=parts(files))
            assert published.status_code == 201
        with site.client(keys["retail"]) as retail:
            for model in ("mining/gold", "mining/nothing"):
                assert retail.post("/v1/completions", json={"model": model, "prompt": "x"}).status_code == 404
            assert retail.get("/admin/tenants/mining/adapters").status_code == 404
            assert retail.get("/admin/tenants").status_code == 403
            # A missing name of the tenant's own is not audited.
            assert retail.post("/v1/completions", json={"model": "typo", "prompt": "x"}).status_code == 404
        with site.client(keys["only-pricing"]) as client:
            assert client.post("/v1/completions", json={"model": "other", "prompt": "x"}).status_code == 403
        with site.client(keys["at-home"]) as client:
            assert client.get("/v1/models").status_code == 403
    with sqlite3.connect(site.settings.home / "tenora.db") as database:
        rows = database.execute("select actor, tenant, after from audit where action = 'key.refuse'").fetchall()
    ids = {name: key.split("_")[1] for name, key in keys.items()}
    by_key = {actor: (tenant, after) for actor, tenant, after in rows}
    assert set(by_key) == {ids["retail"], ids["only-pricing"], ids["at-home"]}
    assert {tenant for tenant, _ in by_key.values()} == {"retail"}
    told = by_key[ids["retail"]][1]
    for words in ("mining/gold", "mining/nothing", "There is no tenant", "lacks the scope admin"):
        assert words in told
    assert "typo" not in told

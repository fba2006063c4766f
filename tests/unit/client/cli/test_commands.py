"""tenants, keys and adapters commands against a live server."""

import json
import re
from datetime import datetime, timedelta

import pytest

from tenora_client.transport import Refused
from tests.support.serving import peft_files

KEY = re.compile(r"tnr_[0-9A-Za-z]{16}_[0-9A-Za-z]{49}\n")


@pytest.fixture
def tenant(tenora, new_slug):
    slug = new_slug()
    tenora("tenants", "create", slug)
    return slug


def test_tenants_from_creation_to_deletion(tenora, new_slug):
    slug = new_slug()
    created = tenora.json("tenants", "create", slug, "--name", "Pricing & co [bold]")
    assert (created["slug"], created["name"], created["disabled"]) == (slug, "Pricing & co [bold]", False)
    assert "Pricing & co [bold]" in tenora("tenants", "list").stdout
    assert slug in [tenant["slug"] for tenant in tenora.json("tenants", "list")]
    assert tenora.json("tenants", "disable", slug)["disabled"] is True
    assert re.search(r"disabled +yes", tenora("tenants", "show", slug).stdout)
    assert tenora.json("tenants", "enable", slug)["disabled"] is False
    result = tenora("tenants", "delete", slug, "--yes")
    assert (result.stdout, result.stderr) == ("", f"Deleted tenant {slug}.\n")
    refused = tenora("tenants", "show", slug, exit_code=1)
    assert refused.stdout == ""
    assert slug in refused.stderr


def test_a_tenants_weight(tenora, new_slug):
    slug = new_slug()
    assert tenora.json("tenants", "create", slug, "--weight", "4")["weight"] == 4.0
    assert tenora.json("tenants", "weight", slug, "0.5")["weight"] == 0.5
    assert re.search(r"weight +0.5", tenora("tenants", "show", slug).stdout)
    assert "0.001 to 1000" in tenora("tenants", "weight", slug, "0", exit_code=1).stderr


def test_deletion_asks_first(tenora, tenant):
    tenora("tenants", "delete", tenant, exit_code=1)
    assert tenora.json("tenants", "show", tenant)["slug"] == tenant


def test_conflict_is_a_failure_with_the_servers_words(tenora, tenant):
    result = tenora("tenants", "create", tenant, exit_code=1)
    assert result.stdout == ""
    assert tenant in result.stderr
    assert "409" in result.stderr
    error = json.loads(tenora("tenants", "create", tenant, "--json", exit_code=1).stderr)["error"]
    assert error["code"] == "conflict"


def test_lists_follow_the_pages(tenora, tenant, monkeypatch):
    monkeypatch.setattr("tenora_client._sync.connection._PAGE", 2)
    made = {tenora.json("keys", "create", f"key-{number}", "--tenant", tenant)["id"] for number in range(5)}
    assert {key["id"] for key in tenora.json("keys", "list", "--tenant", tenant)} == made


def test_a_key_is_the_only_thing_on_stdout_and_works(tenora, tenant):
    result = tenora("keys", "create", "ci", "--tenant", tenant, "--scope", "adapters:read", "--expires-in", "12h")
    assert KEY.fullmatch(result.stdout)
    assert "not shown again" in result.stderr
    assert tenora.json("adapters", "list", TENORA_KEY=result.stdout.strip()) == []
    (listed,) = tenora.json("keys", "list", "--tenant", tenant)
    assert f"expires at {listed['expires_at'][:19].replace('T', ' ')} UTC" in result.stderr
    assert listed["scopes"] == ["adapters:read"]
    assert listed["expires_at"] > listed["created_at"]
    assert result.stdout.strip() not in tenora("keys", "list", "--tenant", tenant).stdout


def test_a_tenants_key_manages_the_keys_of_its_tenant(tenora, tenant):
    own = tenora.json("keys", "create", "ops", "--tenant", tenant, "--scope", "inference", "--scope", "keys:write")
    made = tenora.json("keys", "create", "nightly", "--own", TENORA_KEY=own["key"])
    assert made["scopes"] == ["inference"]
    listed = tenora.json("keys", "list", "--own", TENORA_KEY=own["key"])
    assert {key["id"] for key in listed} == {own["id"], made["id"]}
    tenora("keys", "revoke", made["id"], "--own", TENORA_KEY=own["key"])
    assert tenora("keys", "list", "--own", TENORA_KEY=made["key"], exit_code=1).stdout == ""


def test_keys_are_listed_with_their_owner(tenora, tenant):
    made = tenora.json("keys", "create", "notebook", "--tenant", tenant, "--owner", "Ada Lovelace")
    assert made["owner"] == "Ada Lovelace"
    heading, row = tenora("keys", "list", "--tenant", tenant).stdout.splitlines()[:2]
    assert heading.split()[:3] == ["id", "name", "owner"]
    assert row.split()[:4] == [made["id"], "notebook", "Ada", "Lovelace"]
    own = tenora.json("keys", "create", "ops", "--tenant", tenant, "--scope", "inference", "--scope", "keys:write")
    nightly = tenora.json("keys", "create", "nightly", "--own", "--owner", "CI", TENORA_KEY=own["key"])
    assert (nightly["owner"], own["owner"]) == ("CI", None)


def test_the_ends_of_keys_are_printed(tenora, tenant):
    assert "never expires" in tenora("keys", "create", "ci", "--tenant", tenant).stderr
    short = tenora("keys", "create", "short", "--tenant", tenant, "--expires-in", "90d")
    old = next(key for key in tenora.json("keys", "list", "--tenant", tenant) if key["name"] == "short")
    lifetime = datetime.fromisoformat(old["expires_at"]) - datetime.fromisoformat(old["created_at"])
    assert lifetime == timedelta(days=90)
    assert old["expires_at"][:10] in short.stderr
    rotated = tenora("keys", "rotate", old["id"], "--tenant", tenant, "--grace", "2h")
    ends = {
        key["id"]: key["expires_at"][:19]
        for key in tenora.json("keys", "list", "--tenant", tenant)
        if key["name"] == "short"
    }
    assert len(ends) == 2
    for end in ends.values():
        assert f"expires at {end.replace('T', ' ')} UTC" in rotated.stderr
    assert f"The old key {old['id']} expires at {ends[old['id']].replace('T', ' ')} UTC" in rotated.stderr


def test_keys_are_rotated_and_revoked(tenora, tenant):
    old = tenora.json("keys", "create", "app", "--tenant", tenant, "--scope", "adapters:read")
    new = tenora.json("keys", "rotate", old["id"], "--tenant", tenant, "--grace", "0s")
    assert new["id"] != old["id"]
    assert "401" in tenora("adapters", "list", exit_code=1, TENORA_KEY=old["key"]).stderr
    tenora("keys", "revoke", new["id"], "--tenant", tenant)
    assert "401" in tenora("adapters", "list", exit_code=1, TENORA_KEY=new["key"]).stderr
    tenora("keys", "revoke", "0" * 16, "--tenant", tenant, exit_code=1)


def test_platform_keys(tenora):
    made = tenora.json("keys", "create", "second admin", "--platform")
    assert made["tenant"] is None
    assert tenora.json("tenants", "list", TENORA_KEY=made["key"])
    tenora("keys", "revoke", made["id"], "--platform")
    tenora("tenants", "list", exit_code=1, TENORA_KEY=made["key"])


def test_an_adapter_from_push_to_deletion(tenora, tenant, adapter_folder):
    push = ("adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices")
    first = tenora.json(*push)
    assert (first["name"], first["state"]) == ("prices@1", "ready")
    assert tenora.json(*push) == first
    assert "prices@1" in tenora(*push).stdout
    (listed,) = tenora.json("adapters", "list", "--tenant", tenant)
    assert (listed["name"], listed["versions"], listed["aliases"]) == ("prices", [1], {"default": {"1": 100}})
    assert "default -> 1" in tenora("adapters", "list", "--tenant", tenant).stdout
    assert tenora.json("adapters", "show", "prices", "--tenant", tenant)["versions"] == [first]
    assert first["digest"] in tenora("adapters", "show", "prices", "--tenant", tenant).stdout
    assert tenora.json("adapters", "show", "prices@1", "--tenant", tenant) == first
    tenora("adapters", "delete", "prices@1", "--tenant", tenant, "--yes", "--force")
    tenora("adapters", "delete", "prices", "--tenant", tenant, "--yes")
    assert "no adapters" in tenora("adapters", "list", "--tenant", tenant).stderr


def test_a_tenant_pushes_with_its_own_key(tenora, tenant, adapter_folder):
    own = tenora("keys", "create", "ci", "--tenant", tenant, "--scope", "adapters:write").stdout.strip()
    version = tenora.json("adapters", "push", str(adapter_folder), "--adapter", "mine", TENORA_KEY=own)
    assert version["name"] == "mine@1"


def test_every_kind_of_reason_of_a_rejection_is_a_sentence(tenora, tenant, tmp_path):
    files = peft_files(tmp_path / "bad", seed=1)
    config = json.loads(files.config) | {"use_dora": True, "bias": "all"}
    (tmp_path / "bad" / "adapter_config.json").write_text(json.dumps(config))
    push = ("adapters", "push", str(tmp_path / "bad"), "--tenant", tenant, "--adapter", "bad")
    result = tenora(*push, exit_code=1)
    assert result.stdout == ""
    assert "- use_dora is True" in result.stderr
    assert "- bias is 'all'" in result.stderr
    reasons = json.loads(tenora(*push, "--json", exit_code=1).stderr)["error"]["reasons"]
    assert {"use_dora", "bias"} <= {reason["field"] for reason in reasons}
    assert tenora.json("adapters", "list", "--tenant", tenant) == []


def test_generate_says_what_the_server_says(tenora, tenant):
    own = tenora("keys", "create", "app", "--tenant", tenant).stdout.strip()
    for flags in ((), ("--no-stream",), ("--chat",)):
        result = tenora("generate", "Hello", "--max-tokens", "8", *flags, exit_code=1, TENORA_KEY=own)
        assert result.stdout == ""
        assert "no engine here" in result.stderr


def test_refused_shows_status_and_request():
    refused = Refused(503, {"error": {"message": "busy"}}, "abc")
    assert str(refused) == "busy (503, request abc)"
    assert str(Refused(500, {"error": "text", "error_type": "x"}, None)) == "text (500)"

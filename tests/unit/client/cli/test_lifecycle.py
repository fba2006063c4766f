"""``tenora adapters`` delete, deletions, retire, restore, watch, and ``tenora server gc``."""

import json
import os
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.serving import peft_files


@pytest.fixture
def tenant(tenora, new_slug):
    slug = new_slug()
    tenora("tenants", "create", slug)
    return slug


@pytest.fixture
def pushed(tenora, tenant, tmp_path):
    """A version whose bytes no other test has."""
    peft_files(tmp_path / "adapter", seed=int(sha256(tenant.encode()).hexdigest()[:7], 16))
    return tenora.json("adapters", "push", str(tmp_path / "adapter"), "--adapter", "prices", "--tenant", tenant)


def test_a_deletion_prints_its_report(tenora, tenant, pushed):
    refused = tenora("adapters", "delete", "prices@1", "--tenant", tenant, "--yes", exit_code=1)
    assert "the alias 'default'" in refused.stderr
    report = tenora.json("adapters", "delete", "prices@1", "--tenant", tenant, "--yes", "--force")
    assert (report["state"], report["subject"]) == ("finished", "prices@1")
    assert all(node["disk_gone_at"] for node in report["nodes"])
    shown = tenora("adapters", "deletions", report["id"], "--tenant", tenant).stdout
    for blob in report["blobs"]:
        assert blob["digest"] in shown
    assert tenora.json("adapters", "deletions", report["id"], "--tenant", tenant) == report
    assert [row["id"] for row in tenora.json("adapters", "deletions", "--tenant", tenant)] == [report["id"]]
    assert "prices@1" in tenora("adapters", "deletions", "--tenant", tenant).stdout


def test_a_key_that_may_write_but_not_read_deletes_too(tenora, tenant, pushed):
    own = tenora("keys", "create", "ci", "--tenant", tenant, "--scope", "adapters:write").stdout.strip()
    result = tenora("adapters", "delete", "prices", "--yes", "--force", TENORA_KEY=own)
    assert "Deleted adapter prices" in result.stderr


def test_retire_and_restore(tenora, tenant, pushed):
    held = tenora("adapters", "retire", "prices@1", "--tenant", tenant, "--reason", "old", exit_code=1)
    assert "the alias 'default'" in held.stderr
    arguments = ("prices@1", "--tenant", tenant)
    assert tenora.json("adapters", "retire", *arguments, "--reason", "old", "--force")["state"] == "retired"
    assert "ready" in tenora("adapters", "restore", *arguments).stdout
    wrong = tenora("adapters", "restore", "prices", "--tenant", tenant, exit_code=2)
    assert "prices@N" in wrong.stderr


def test_watch_prints_what_happens_until_it_is_stopped(tenora, tenant, pushed):
    command = [sys.executable, "-m", "tenora_client", "adapters", "watch", "--tenant", tenant, "--after", "0", "--json"]
    environment = os.environ | tenora.environment
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        heard = []
        try:
            for line in process.stdout:
                heard.append(json.loads(line))
                if heard[-1]["type"] == "version.ready":
                    break
        finally:
            timer.cancel()
            process.kill()
    assert [event["type"] for event in heard][-2:] == ["version.publish", "version.ready"]
    assert {event["tenant"] for event in heard} == {tenant}


def test_watch_with_a_key_that_may_not_says_so(tenora, tenant):
    own = tenora("keys", "create", "app", "--tenant", tenant).stdout.strip()
    assert "adapters:read" in tenora("adapters", "watch", exit_code=1, TENORA_KEY=own).stderr


def test_gc_lists_and_then_removes_what_no_version_needs(alone, tmp_path):
    alone("init")
    # Claim the store while it is empty. Unknown blobs would count as another registry's.
    alone("gc")
    data = b"left behind by an upload that died"
    digest = sha256(data).hexdigest()
    blob = Path(alone.environment["TENORA_HOME"]) / "blobs" / "sha256" / digest[:2] / digest
    blob.parent.mkdir(parents=True)
    blob.write_bytes(data)
    young = alone.json("gc")
    assert (young["orphans"], young["young_blobs"]) == ([], 1)
    listed = alone.json("gc", "--dry-run", "--min-age-hours", "0")
    assert [(row["digest"], row["what"]) for row in listed["orphans"]] == [(digest, "would be removed")]
    assert blob.exists()
    assert digest in alone("gc", "--dry-run", "--min-age-hours", "0").stdout
    removed = alone.json("gc", "--min-age-hours", "0")
    assert [(row["digest"], row["what"]) for row in removed["orphans"]] == [(digest, "removed")]
    assert not blob.exists()
    assert "no blobs without a version" in alone("gc", "--min-age-hours", "0").stderr


def test_gc_needs_a_registry(alone):
    assert "Run `tenora server init`." in alone("gc", exit_code=1).stderr
    assert "--min-age-hours" in alone("gc", "--min-age-hours", "-1", exit_code=2).stderr

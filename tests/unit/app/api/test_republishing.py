"""Upload of identical bytes: no new version, but its alias and description are applied."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.support.publishing import publish, version
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, parts

ADAPTER = "/v1/adapters/quotes"


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


def aliases(client: httpx.Client) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = client.get(ADAPTER).json()["aliases"]
    return found


def test_the_alias_that_is_asked_for_moves(client: httpx.Client, files: PeftFiles, other_files: PeftFiles) -> None:
    publish(client, files)
    publish(client, other_files)
    again = publish(client, files, alias="candidate")
    assert (again.status_code, again.json()["version"], again.json()["aliases"]) == (200, 1, ["candidate"])
    assert aliases(client) == {"candidate": {"1": 100}, "default": {"2": 100}}
    assert publish(client, files).json()["aliases"] == ["candidate", "default"]
    assert aliases(client)["default"] == {"1": 100}
    changes = client.get(f"{ADAPTER}/aliases/default/history").json()["data"]
    assert [change["action"] for change in changes] == ["publish"] * 3


def test_an_alias_that_is_there_already_has_no_new_history(client: httpx.Client, files: PeftFiles) -> None:
    publish(client, files)
    before = client.get(f"{ADAPTER}/aliases/default").headers["etag"]
    assert publish(client, files).status_code == 200
    assert client.get(f"{ADAPTER}/aliases/default").headers["etag"] == before


def test_what_is_said_of_the_version_is_applied(client: httpx.Client, files: PeftFiles) -> None:
    publish(client, files, labels={"team": "a"}, card="first", training_run="https://runs.example/1")
    again = publish(client, files, labels={"team": "b"}, card="second", defaults={"temperature": 0.5}).json()
    assert (again["labels"], again["card"]) == ({"team": "b"}, "second")
    assert again["defaults"]["temperature"] == 0.5
    # Fields that the second upload omits are kept.
    assert again["provenance"]["training_run"] == "https://runs.example/1"
    silent = publish(client, files, alias=None).json()
    assert silent == again


def test_a_template_of_the_administrator_stays(site: Site, unit: Unit, files: PeftFiles) -> None:
    template = "{{ messages[0].content }}"
    form = parts(files) | {"options": ("options", json.dumps({"defaults": {"chat_template": template}}).encode())}
    with site.client(site.admin_key) as admin:
        assert admin.post(f"/admin/tenants/{unit.slug}/adapters/quotes/versions", files=form).status_code == 201
    with site.client(unit.key) as client:
        again = publish(client, files, defaults={"temperature": 0.5}).json()
        assert again["defaults"] == {"chat_template": template, "temperature": 0.5}


def test_a_retired_version_gets_no_alias(client: httpx.Client, files: PeftFiles) -> None:
    publish(client, files, alias="old", card="first")
    assert client.post(f"{ADAPTER}/versions/1/retire?force=true", json={"reason": "x"}).status_code == 200
    refused = publish(client, files, card="second")
    assert (refused.status_code, "retired" in refused.text) == (409, True)
    assert (version(client, 1)["card"], aliases(client)) == ("first", {})
    # Its description may still change.
    assert publish(client, files, alias=None, card="second").json()["card"] == "second"


def test_while_it_is_checked_another_alias_has_to_wait(site: Site, client: httpx.Client, files: PeftFiles) -> None:
    site.engine.may_smoke.clear()
    try:
        assert publish(client, files, wait=False).status_code == 202
        assert publish(client, files, wait=False, labels={"team": "a"}).json()["labels"] == {"team": "a"}
        refused = publish(client, files, wait=False, alias="candidate")
        assert (refused.status_code, "validating" in refused.text) == (409, True)
    finally:
        site.engine.may_smoke.set()
    assert publish(client, files, alias="candidate").json()["aliases"] == ["candidate", "default"]


def test_no_publication_makes_more_aliases_than_are_allowed(
    client: httpx.Client, files: PeftFiles, other_files: PeftFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.rollout.alias_lookups.MAX_ALIASES", 1)
    publish(client, files)
    assert publish(client, files, alias="candidate").status_code == 409
    assert publish(client, other_files, alias="candidate").status_code == 409
    assert publish(client, other_files).status_code == 201

"""``tenora adapters pin``, ``unpin`` and ``pins`` against a live server."""

import pytest


def test_a_version_is_pinned_listed_and_unpinned(tenora, new_slug, adapter_folder):
    slug = new_slug()
    tenora("tenants", "create", slug)
    tenora("adapters", "push", str(adapter_folder), "--tenant", slug, "--adapter", "quotes")
    assert tenora.json("adapters", "pin", "quotes@1", "--tenant", slug)["name"] == "quotes@1"
    assert "quotes@1" in tenora("adapters", "pin", "quotes@1", "--tenant", slug).stdout
    assert [(pin["tenant"], pin["name"]) for pin in tenora.json("adapters", "pins")["data"]] == [(slug, "quotes@1")]
    assert slug in tenora("adapters", "pins").stdout
    unpinned = tenora("adapters", "unpin", "quotes@1", "--tenant", slug)
    assert (unpinned.stdout, unpinned.stderr) == ("", "quotes@1 is no longer pinned.\n")
    assert "is not pinned" in tenora("adapters", "unpin", "quotes@1", "--tenant", slug, exit_code=1).stderr
    assert "4 slots" in tenora("adapters", "pins").stderr


@pytest.mark.parametrize("name", ["quotes", "quotes@", "quotes@0", "quotes@x", "@1"])
def test_a_pin_is_of_one_version(tenora, name):
    assert "ADAPTER@" in tenora("adapters", "pin", name, exit_code=2).stderr

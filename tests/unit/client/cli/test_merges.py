"""``tenora adapters merge`` against a live server."""

import pytest

from tests.support.peft_adapters import make_adapter


@pytest.fixture
def tenant(tenora, new_slug, tmp_path):
    """A tenant with two versions of one adapter."""
    slug = new_slug()
    tenora("tenants", "create", slug)
    for seed in (31, 32):
        folder = make_adapter(tmp_path / str(seed), seed=seed, target_modules=["q_proj"])
        tenora("adapters", "push", str(folder), "--tenant", slug, "--adapter", "source")
    return slug


@pytest.mark.slow
def test_a_merge_becomes_a_version(tenora, tenant):
    sources = ("--source", "source@1=0.75", "--source", "source@2=-.5")
    arguments = ("--method", "svd", "--svd-rank", "3", "--no-svd-full-matrices", "--label", "team=core")
    version = tenora.json("adapters", "merge", "merged", *sources, *arguments, "--tenant", tenant)
    recipe = version["provenance"]["source"]["recipe"]
    assert [(source["version"], source["weight"]) for source in recipe["sources"]] == [
        ("source@1", 0.75),
        ("source@2", -0.5),
    ]
    assert (recipe["svd_rank"], recipe["svd_full_matrices"], version["rank"]) == (3, False, 3)
    assert version["labels"] == {"team": "core"}
    assert "merged@1" in tenora("adapters", "show", "merged@1", "--tenant", tenant).stdout


def test_every_reason_is_shown(tenora, tenant):
    arguments = ("--source", "source@1=1", "--source", "source@1=1000", "--method", "ties", "--tenant", tenant)
    refused = tenora("adapters", "merge", "merged", *arguments, exit_code=1)
    assert refused.stdout == ""
    for field in ("density", "sources.1.weight", "sources.1.version"):
        assert field in refused.stderr


@pytest.mark.parametrize("source", ["source@1", "source=1", "source@1=", "source@1=nan", "source@x=1", "source@1=1e3"])
def test_a_source_is_a_version_and_a_weight(tenora, source):
    arguments = ("--source", source, "--source", "source@2=1", "--method", "linear")
    assert "--source" in tenora("adapters", "merge", "merged", *arguments, exit_code=2).stderr

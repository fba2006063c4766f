"""Two registries on one store: refusals, and the take-over of the store."""

import json

import pytest

from tests.support.serving import save_base


@pytest.fixture
def homes(alone, tmp_path):
    """Settings of two registries that use the same store. The first one has claimed it."""
    base = save_base(tmp_path / "tiny-llama")
    store = f"file://{tmp_path}/blobs"
    first, second = (
        {"TENORA_HOME": str(tmp_path / name), "TENORA_STORE_URL": store, "TENORA_BASE_MODEL": str(base)}
        for name in ("first", "second")
    )
    for home in (first, second):
        alone("init", **home)
    alone("gc", **first)
    return first, second


@pytest.mark.parametrize("command", [("gc", "--dry-run"), ("gc",), ("serve", "--port", "0"), ("store", "adopt")])
def test_the_store_of_another_registry_is_refused_in_a_sentence(alone, homes, command):
    _, second = homes
    result = alone(*command, exit_code=1, **second)
    assert result.stderr.startswith("error: The store belongs to registry ")
    assert result.stderr.count("\n") == 1


def test_a_store_is_taken_over(alone, homes):
    first, second = homes
    adopted = json.loads(alone("store", "adopt", "--yes", "--json", **second).stdout)
    assert adopted["before"] not in {None, adopted["registry"]}
    alone("gc", "--dry-run", **second)
    assert adopted["registry"] in alone("gc", "--dry-run", exit_code=1, **first).stderr
    again = json.loads(alone("store", "adopt", "--json", **second).stdout)
    assert again == {"before": adopted["registry"], "registry": adopted["registry"]}

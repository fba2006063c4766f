"""Command lines of the compared servers, and the HOME directory that Tenora starts on."""

import itertools
import os

import httpx
import pytest

from app.lab.bench import models, rivals
from app.lab.bench.engineless import serving
from app.lab.bench.publishing import TENANT, copy_home, make_home, settings_of

pytestmark = pytest.mark.slow

TENANTS = {"first": "red", "second": "blue"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return models.toy_base(tmp_path_factory.mktemp("models"))


def test_every_tenant_finds_its_adapters_on_each_copy(base, tmp_path):
    paths = models.adapters(tmp_path, base, 3, (8,), seed=1)
    adapters = dict(zip(("first", "second", "third"), paths, strict=True))
    settings = {"TENORA_BASE_MODEL": str(base), "TENORA_ENGINE__MAX_LORA_RANK": "8"}
    published: list[str] = []
    for _ in range(2):
        make_home(tmp_path / "kept", settings, adapters, TENANTS, {"red": 2.5}, lambda: published.append("one"))
    assert len(published) == 3

    admin, keys = copy_home(tmp_path / "kept", tmp_path / "copy")
    assert set(keys) == {"red", "blue", TENANT}
    assert not (tmp_path / "copy" / "cache").exists()
    kept, copied = ({path.stat().st_ino for path in _blobs(tmp_path / name)} for name in ("kept", "copy"))
    assert kept == copied
    found = settings_of(settings | {"TENORA_HOME": str(tmp_path / "copy")})
    with serving(found) as (url, _), httpx.Client(base_url=url, trust_env=False) as client:
        seen = {slug: _get(client, "/v1/models", key) for slug, key in keys.items()}
        red = _get(client, "/admin/tenants/red", admin)
    assert {slug: {one["id"] for one in page["data"]} for slug, page in seen.items()} == {
        "red": {base.name, "first"},
        "blue": {base.name, "second"},
        TENANT: {base.name, "third"},
    }
    assert red["weight"] == 2.5


def _blobs(home):
    return [path for path in (home / "blobs").rglob("*") if path.is_file()]


def _get(client, path, key):
    return client.get(path, headers={"authorization": f"Bearer {key}"}).raise_for_status().json()


def test_settings_are_read_as_a_server_reads_them():
    settings = settings_of(
        {
            "TENORA_BASE_MODEL_NAME": "base",
            "TENORA_ENGINE__MAX_LORAS": "4",
            "TENORA_ENGINE__EXTRA_ARGS": '{"max_num_seqs": 8}',
            "TENORA_QUEUE__MAX_AGE_S": "0.5",
        }
    )
    assert (settings.base_model_name, settings.engine.max_loras, settings.queue.max_age_s) == ("base", 4, 0.5)
    assert settings.engine.extra_args == {"max_num_seqs": 8}


def test_vllm_gets_tenoras_engine_arguments_and_none_of_its_code(base):
    settings = {"TENORA_ENGINE__MAX_LORA_RANK": "16", "TENORA_ENGINE__EXTRA_ARGS": '{"max_num_seqs": 8}'}
    arguments = rivals.vllm_arguments(base, slots=4, host_adapters=8, settings=settings)
    pairs = dict(itertools.pairwise(arguments))
    expected = {"--max-loras": "4", "--max-cpu-loras": "8", "--max-lora-rank": "16", "--max-num-seqs": "8"}
    assert expected.items() <= pairs.items()
    assert pairs["--served-model-name"] == "base"
    assert not any("app.engine" in argument for argument in arguments)
    assert "--model" not in arguments
    # vLLM refuses fewer adapters in host memory than slots.
    fewest = rivals.vllm_arguments(base, slots=4, host_adapters=1)
    assert fewest[fewest.index("--max-cpu-loras") + 1] == "4"


def test_what_is_published_depends_on_what_is_published(base, tmp_path):
    adapters = {"a": tmp_path}
    digests = [
        rivals._digest(base, {}, adapters, {"a": "red"}, {}),
        rivals._digest(base, {}, adapters, {"a": "blue"}, {}),
        rivals._digest(base, {}, adapters, {"a": "red"}, {"red": 2.0}),
        rivals._digest(base, {"TENORA_ENGINE__MAX_LORA_RANK": "8"}, adapters, {"a": "red"}, {}),
        rivals._digest(base, {}, {"a": tmp_path / "other"}, {"a": "red"}, {}),
    ]
    assert len(set(digests)) == len(digests)
    same = rivals._digest(base, {"TENORA_ENGINE__MAX_LORAS": str(os.getpid())}, adapters, {"a": "red"}, {})
    assert same == digests[0]

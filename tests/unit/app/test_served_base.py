"""The served base model: its location, name and digest."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from adapters.errors import UnsupportedBase
from app.served_base import BaseNotFound, base_digest, open_base
from app.settings import Settings
from tests.support.serving import save_base


def test_a_folder(tmp_path: Path) -> None:
    base = open_base(Settings(home=tmp_path, base_model=str(save_base(tmp_path / "tiny-llama"))))
    assert (base.path, base.name) == (tmp_path / "tiny-llama", "tiny-llama")
    assert (base.geometry.layers, base.geometry.hidden) == (3, 64)


def test_the_demo_is_the_default(tmp_path: Path) -> None:
    save_base(tmp_path / "demo" / "base")
    assert open_base(Settings(home=tmp_path)).name == "base"


def test_a_name_may_be_given(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, base_model=str(save_base(tmp_path / "x")), base_model_name="llama-3-8b")
    assert open_base(settings).name == "llama-3-8b"


def test_what_is_absent_or_no_llama_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseNotFound, match="there is no folder"):
        open_base(Settings(home=tmp_path))
    with pytest.raises(BaseNotFound, match="there is no folder"):
        open_base(Settings(home=tmp_path, base_model=str(tmp_path / "absent")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BaseNotFound, match=r"has no config\.json"):
        open_base(Settings(home=tmp_path, base_model=str(tmp_path / "empty")))
    for content in ("{", "[]", json.dumps({"architectures": ["GPT2LMHeadModel"]})):
        (tmp_path / "empty" / "config.json").write_text(content)
        with pytest.raises(UnsupportedBase):
            open_base(Settings(home=tmp_path, base_model=str(tmp_path / "empty")))


def test_a_hub_id_is_looked_up_on_this_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--someone--tiny-llama"
    save_base(repository / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    base = open_base(Settings(home=tmp_path, base_model="someone/tiny-llama", base_model_revision=commit))
    assert (base.path, base.name) == (repository / "snapshots" / commit, "tiny-llama")
    with pytest.raises(BaseNotFound, match="someone/absent"):
        open_base(Settings(home=tmp_path, base_model="someone/absent", base_model_revision=commit))


def test_the_digest_is_of_the_config_and_the_index(tmp_path: Path) -> None:
    one, other = save_base(tmp_path / "one"), save_base(tmp_path / "other")
    assert len(base_digest(one)) == 64
    assert base_digest(one) == base_digest(other) == open_base(Settings(home=tmp_path, base_model=str(one))).digest
    index = json.dumps({"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}})
    (one / "model.safetensors.index.json").write_text(index)
    assert base_digest(one) != base_digest(other)
    (other / "model.safetensors.index.json").write_text(index)
    assert base_digest(one) == base_digest(other)
    # With an index present, the digest ignores the shards.
    (other / "model-00001-of-00001.safetensors").write_bytes(b"a part")
    assert base_digest(one) == base_digest(other)
    config = json.loads((other / "config.json").read_text()) | {"rope_theta": 1.0}
    (other / "config.json").write_text(json.dumps(config))
    assert base_digest(one) != base_digest(other)


def test_without_an_index_the_header_and_the_size_count(tmp_path: Path) -> None:
    def digest(folder: str, **tensors: np.ndarray) -> str:
        save_file(tensors, save_base(tmp_path / folder) / "model.safetensors")
        return base_digest(tmp_path / folder)

    zeros = np.zeros((4, 2), np.float32)
    first = digest("first", embed=zeros)
    assert first == digest("same", embed=zeros) == digest("retrained", embed=zeros + 1)
    others = {digest("narrower", embed=zeros[:, :1]), digest("half", embed=zeros.astype(np.float16))}
    assert len({first, *others, digest("renamed", lm_head=zeros)}) == 4


@pytest.mark.parametrize("content", [b"", b"\1\0", b"\xff" * 16, (100).to_bytes(8, "little") + b"{}"])
def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path, content: bytes) -> None:
    (save_base(tmp_path / "base") / "model.safetensors").write_bytes(content)
    with pytest.raises(BaseNotFound, match=r"model\.safetensors"):
        base_digest(tmp_path / "base")

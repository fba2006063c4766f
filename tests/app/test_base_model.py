"""Where the base is and what it is called."""

import json
from pathlib import Path

import pytest

from adapters.errors import UnsupportedBase
from app.base_model import BaseNotFound, open_base
from app.settings import Settings
from tests.app.serving import save_base


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
    with pytest.raises(BaseNotFound, match="found no folder"):
        open_base(Settings(home=tmp_path))
    with pytest.raises(BaseNotFound, match="found no folder"):
        open_base(Settings(home=tmp_path, base_model=str(tmp_path / "absent")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BaseNotFound, match=r"found no config\.json"):
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

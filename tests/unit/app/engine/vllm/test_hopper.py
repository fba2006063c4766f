"""Configuration of vLLM's LoRA kernel on Hopper cards, read by vLLM's functions."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from vllm import envs
from vllm.lora.ops.triton_ops import utils

from app.engine.vllm.hopper import FOLDER_VARIABLE, needs_workaround, use_one_stage

CARDS = ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H20-3e"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Clear vLLM's cache of the configuration files."""
    for remembered in (utils.load_lora_op_config, utils.get_lora_op_configs):
        remembered.cache_clear()
    envs.disable_envs_cache()
    yield
    for remembered in (utils.load_lora_op_config, utils.get_lora_op_configs):
        remembered.cache_clear()


def found(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], card: str, **asked: object) -> dict[str, object]:
    """Return vLLM's configuration of ``lora_expand`` on a card."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: card)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return dict(utils.get_lora_op_configs("expand", **asked))


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("card", CARDS)
def test_vllm_runs_its_own_default_in_one_stage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, card: str, slices: int, adds: bool
) -> None:
    asked = {"max_loras": 64, "batch": 8192, "hidden_size": 14336, "rank": 64, "num_slices": slices, "add_inputs": adds}
    default = found(monkeypatch, {}, card, **asked)
    utils.get_lora_op_configs.cache_clear()
    utils.load_lora_op_config.cache_clear()
    environ = dict[str, str]()
    for _ in range(2):  # at the engine's first start, and at a restart
        use_one_stage(tmp_path / "kernels", environ, card)
    assert found(monkeypatch, environ, card, **asked) == default | {"num_stages": 1}
    assert default["num_stages"] > 1, "vLLM runs one stage by itself: delete app/engine/vllm/hopper.py"


def test_an_operators_folder_stays(tmp_path: Path) -> None:
    environ = {FOLDER_VARIABLE: "/mine"}
    use_one_stage(tmp_path / "kernels", environ, CARDS[0])
    assert environ == {FOLDER_VARIABLE: "/mine"}
    assert not (tmp_path / "kernels").exists()


def test_a_machine_without_such_a_card_is_left_alone() -> None:
    assert not needs_workaround()

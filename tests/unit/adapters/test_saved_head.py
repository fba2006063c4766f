"""Head that PEFT saves with a LoRA of it: accepted if it equals the base's, and removed for the engine."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from adapters.geometry import BaseGeometry, read_geometry
from adapters.validation import Verdict, validate
from tests.support.odd_adapters import BOTH
from tests.support.peft_adapters import TINY_LLAMA, make_adapter, tiny_llama

CONFIG, WEIGHTS = BOTH
SAVED = "base_model.model.lm_head.base_layer.weight"


def save_base(folder: Path, *, dtype: torch.dtype = torch.float32, shards: bool = False, tied: bool = False) -> Path:
    model = tiny_llama()
    if tied:
        model = LlamaForCausalLM(type(model.config)(**TINY_LLAMA, tie_word_embeddings=True))
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == shards
    return folder


def geometry_of(base: Path) -> BaseGeometry:
    return read_geometry(json.loads((base / "config.json").read_text()))


def with_head(folder: Path, base: Path, *, dtype: torch.dtype | None = None) -> Path:
    """Create an adapter of head and q_proj that contains the head, as PEFT saves it by default."""
    model = LlamaForCausalLM.from_pretrained(base, dtype="auto")
    head = model.lm_head.weight.detach().clone()
    make_adapter(folder, base=model.float(), target_modules=["q_proj", "lm_head"])
    tensors = load_file(folder / WEIGHTS) | {SAVED: head.to(dtype or head.dtype).contiguous()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def check(folder: Path, base: Path | None, geometry: BaseGeometry, normal: Path, *, head: bool = True) -> Verdict:
    normal.mkdir()
    return validate(folder / CONFIG, folder / WEIGHTS, geometry, 64, head=head, base=base, normal=normal)


def test_peft_saves_the_head_by_itself(tmp_path: Path) -> None:
    """If PEFT stops doing so, the tests of this module lose their purpose."""
    get_peft_model(tiny_llama(), LoraConfig(target_modules=["lm_head"])).save_pretrained(tmp_path)
    assert SAVED in load_file(tmp_path / WEIGHTS)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("trained", "saved"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
    ],
)
def test_the_bases_own_is_accepted_and_left_out(
    tmp_path: Path, trained: torch.dtype, saved: torch.dtype, tied: bool, shards: bool
) -> None:
    base = save_base(tmp_path / "base", dtype=trained, shards=shards, tied=tied)
    upload = with_head(tmp_path / "adapter", base, dtype=saved)
    verdict = check(upload, base, geometry_of(base), tmp_path / "normal")
    assert verdict.reasons == ()
    assert verdict.rewritten == (WEIGHTS,)
    kept, normal = load_file(upload / WEIGHTS), load_file(tmp_path / "normal" / WEIGHTS)
    del kept[SAVED]
    assert sorted(normal) == sorted(kept)
    assert all(torch.equal(normal[name], kept[name]) for name in kept)
    assert verdict.summary is not None
    assert verdict.summary.parameters == sum(tensor.numel() for tensor in kept.values())


@pytest.mark.parametrize("change", ["last value", "shape", "dtype of fewer bits"])
def test_another_one_is_refused_with_the_way_out(tmp_path: Path, change: str) -> None:
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    upload = with_head(tmp_path / "adapter", base, dtype=torch.float32)
    tensors = load_file(upload / WEIGHTS)
    if change == "last value":
        tensors[SAVED][-1, -1] += 0.001
    elif change == "shape":
        tensors[SAVED] = tensors[SAVED][:-1].contiguous()
    else:
        # The difference is too small for bfloat16.
        tensors[SAVED][-1, -1] *= 1 + 2**-20
    save_file(tensors, upload / WEIGHTS, metadata={"format": "pt"})
    (reason,) = check(upload, base, geometry_of(base), tmp_path / "normal").reasons
    assert (reason.code, reason.field) == ("embedding_not_served", SAVED)
    assert "save_embedding_layers=False" in reason.message


def test_without_the_setting_there_is_one_reason_which_names_it(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    upload = with_head(tmp_path / "adapter", base)
    (reason,) = check(upload, base, geometry_of(base), tmp_path / "normal", head=False).reasons
    assert "TENORA_ENGINE__LORA_HEAD" in reason.message


def test_a_head_without_a_lora_of_it_is_refused(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    upload = make_adapter(tmp_path / "adapter", target_modules=["q_proj"])
    head = load_file(base / "model.safetensors")["lm_head.weight"]
    save_file(load_file(upload / WEIGHTS) | {SAVED: head}, upload / WEIGHTS, metadata={"format": "pt"})
    (reason,) = check(upload, base, geometry_of(base), tmp_path / "normal").reasons
    assert reason.code == "embedding_not_served"


def test_without_the_base_at_hand_none_is_accepted(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    upload = with_head(tmp_path / "adapter", base)
    (reason,) = check(upload, None, geometry_of(base), tmp_path / "normal").reasons
    assert reason.code == "embedding_not_served"


@pytest.mark.parametrize("layout", ["another file name", "an index without it", "another format"])
def test_a_base_whose_head_cannot_be_found_accepts_none(tmp_path: Path, layout: str) -> None:
    base = save_base(tmp_path / "base", shards=layout == "an index without it")
    upload = with_head(tmp_path / "adapter", base)
    if layout == "another file name":
        (base / "model.safetensors").rename(base / "consolidated.safetensors")
    elif layout == "an index without it":
        (base / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    else:
        (base / "model.safetensors").write_bytes(b"not safetensors at all")
    (reason,) = check(upload, base, geometry_of(base), tmp_path / "normal").reasons
    assert reason.code == "embedding_not_served"


@pytest.mark.parametrize("fits", [True, False])
def test_the_header_alone_shows_the_shape_of_a_saved_head(tmp_path: Path, fits: bool) -> None:
    base = save_base(tmp_path / "base")
    upload = with_head(tmp_path / "adapter", base)
    tensors = load_file(upload / WEIGHTS)
    tensors[SAVED] = tensors[SAVED] + 1 if fits else tensors[SAVED][:-1].contiguous()
    save_file(tensors, upload / WEIGHTS, metadata={"format": "pt"})
    raw = (upload / WEIGHTS).read_bytes()
    (upload / WEIGHTS).write_bytes(raw[: 8 + int.from_bytes(raw[:8], "little")])
    verdict = validate(
        upload / CONFIG, upload / WEIGHTS, geometry_of(base), 64, head=True, base=base, whole_bytes=len(raw)
    )
    assert [reason.code for reason in verdict.reasons] == ([] if fits else ["embedding_not_served"])
    assert (verdict.summary and verdict.summary.saved_heads) == ((SAVED,) if fits else None)

"""Normal form of an adapter: vLLM and PEFT read the same from it as PEFT reads from the upload."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from vllm.lora.peft_helper import PEFTHelper

from adapters.geometry import BaseGeometry
from adapters.modules import is_full_name
from adapters.normal import MAX_PLAIN_PATTERNS
from adapters.patterns import PLAIN
from adapters.validation import Verdict, validate
from tests.support.bad_configs import config
from tests.support.odd_adapters import BOTH, ODD
from tests.support.peft_adapters import make_adapter, read_config, tiny_llama

CONFIG, WEIGHTS = BOTH
PROMPT = torch.tensor([[5, 17, 42, 8, 77]])


def normalise(upload: Path, folder: Path, geometry: BaseGeometry, *, head: bool = False) -> Verdict:
    """Validate an upload, and copy the files that need no rewriting into its normal form."""
    folder.mkdir()
    verdict = validate(upload / CONFIG, upload / WEIGHTS, geometry, 64, head=head, normal=folder)
    assert {path.name for path in folder.iterdir()} == set(verdict.rewritten)
    for name in {*BOTH} - {*verdict.rewritten}:
        shutil.copy(upload / name, folder)
    return verdict


def logits(folder: Path) -> torch.Tensor:
    """Compute the logits of PEFT with the adapter on the tiny base."""
    model = PeftModel.from_pretrained(tiny_llama(), folder)
    with torch.inference_mode():
        return model(input_ids=PROMPT).logits


@pytest.mark.parametrize("name", ODD)
def test_an_odd_adapters_normal_form_means_the_same(
    name: str, good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    odd = ODD[name]
    upload, oracle = (shutil.copytree(good_adapter, tmp_path / part) for part in ("upload", "oracle"))
    odd.change(upload)
    (odd.for_peft or odd.change)(oracle)
    verdict = normalise(upload, tmp_path / "normal", geometry)
    assert verdict.reasons == ()
    assert set(verdict.rewritten) == set(odd.rewritten)
    assert [odd.warned in warning.message for warning in verdict.warnings] == [True] * bool(odd.warned)
    _check_for_the_engine(tmp_path / "normal")
    config(task_type="CAUSAL_LM")(tmp_path / "normal")
    assert torch.equal(logits(tmp_path / "normal"), logits(oracle))


def test_the_oracle_tells_adapters_apart(good_adapter: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(good_adapter, tmp_path / "changed")
    config(alpha_pattern={r".*\.layers\.1\..*q_proj": 3})(changed)
    assert not torch.equal(logits(good_adapter), logits(changed))


def _check_for_the_engine(folder: Path) -> None:
    found = read_config(folder)
    patterns = {**(found.get("rank_pattern") or {}), **(found.get("alpha_pattern") or {})}
    assert all(map(is_full_name, patterns)) or (
        len(patterns) <= MAX_PLAIN_PATTERNS and all(map(PLAIN.fullmatch, patterns))
    )
    assert isinstance(found["target_modules"], list)
    assert not isinstance(found.get("exclude_modules"), str)
    assert all(name.startswith("base_model.model.") for name in load_file(folder / WEIGHTS))
    assert all(not name.startswith("base_model.model.base_model") for name in load_file(folder / WEIGHTS))
    assert PEFTHelper.from_local_dir(str(folder), None)._validate_features() == []


@pytest.mark.parametrize("name", [name for name, odd in ODD.items() if odd.rewritten])
def test_a_normal_form_is_normal_itself_and_always_the_same(
    name: str, good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    upload = shutil.copytree(good_adapter, tmp_path / "upload")
    ODD[name].change(upload)
    first = normalise(upload, tmp_path / "first", geometry)
    normalise(upload, tmp_path / "second", geometry)
    for file in BOTH:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    again = normalise(tmp_path / "first", tmp_path / "again", geometry)
    assert (again.reasons, again.rewritten) == ((), ())
    assert again.summary == first.summary


def test_renamed_tensors_have_the_bytes_that_were_uploaded(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    upload = shutil.copytree(good_adapter, tmp_path / "upload")
    ODD["no prefix"].change(upload)
    normalise(upload, tmp_path / "normal", geometry)
    expected, found = load_file(good_adapter / WEIGHTS), load_file(tmp_path / "normal" / WEIGHTS)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with safe_open(tmp_path / "normal" / WEIGHTS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    # Offset of the first tensor: the safetensors library requires this alignment for mapped files.
    assert int.from_bytes((tmp_path / "normal" / WEIGHTS).read_bytes()[:8], "little") % 8 == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target_modules": ["q_proj", "self_attn.o_proj"]},
        {"layers_to_transform": [0, 2]},
        {"exclude_modules": ["layers.0.self_attn.q_proj"], "target_modules": ["up_proj", "q_proj"]},
        {"rank_pattern": {"q_proj": 8, "layers.1.mlp.up_proj": 2}, "alpha_pattern": {"v_proj": 3}},
    ],
)
def test_what_peft_writes_by_itself_is_normal(tmp_path: Path, geometry: BaseGeometry, options: dict[str, Any]) -> None:
    verdict = normalise(make_adapter(tmp_path / "good", **options), tmp_path / "normal", geometry)
    assert (verdict.reasons, verdict.rewritten, verdict.warnings) == ((), (), ())


def test_nothing_is_written_for_a_refused_upload(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    upload = shutil.copytree(good_adapter, tmp_path / "upload")
    ODD["no prefix, and expressions"].change(upload)
    config(use_dora=True)(upload)
    (tmp_path / "normal").mkdir()
    verdict = validate(upload / CONFIG, upload / WEIGHTS, geometry, 64, normal=tmp_path / "normal")
    assert verdict.reasons
    assert list((tmp_path / "normal").iterdir()) == []


def test_a_normal_form_has_no_refused_key(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    """Only keys that the normal form allows reach the engine."""
    upload = shutil.copytree(good_adapter, tmp_path / "upload")
    config(target_modules="all-linear", use_something_new=0, merge_weights=True, corda_config={"a": 1})(upload)
    normalise(upload, tmp_path / "normal", geometry)
    kept = {"base_model_name_or_path", "init_lora_weights", "peft_version"}
    made = {"alpha_pattern", "bias", "inference_mode", "lora_alpha", "peft_type", "r", "rank_pattern"}
    made |= {"target_modules", "task_type", "use_rslora"}
    assert json.loads((tmp_path / "normal" / CONFIG).read_bytes()).keys() == kept | made

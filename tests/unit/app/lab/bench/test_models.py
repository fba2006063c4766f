"""Models of the benchmarks: Tenora's validation and PEFT accept them."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.geometry import read_geometry
from adapters.validation import validate
from app.lab.bench import models


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def base(home):
    return models.toy_base(home)


@pytest.fixture(scope="module")
def made(home, base):
    return models.adapters(home, base, 4, (8, 16), seed=1)


def test_the_base_has_a_matching_tokenizer(base):
    assert len(AutoTokenizer.from_pretrained(base)) == models.vocabulary(base)
    config = json.loads((base / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["dtype"]) == (128, 4, "float32")


@pytest.mark.parametrize(("cpu", "dtype"), [(True, "float32"), (False, "auto")])
def test_a_base_is_served_in_what_its_machine_has_adapters_in(monkeypatch, cpu, dtype):
    monkeypatch.setattr("app.engine.vllm.platform.on_cpu", lambda: cpu)
    assert models.served_dtype() == dtype


def test_every_adapter_passes_the_gate_with_its_rank(base, made):
    geometry = read_geometry(json.loads((base / "config.json").read_text()))
    found = [validate(path / CONFIG_NAME, path / WEIGHTS_NAME, geometry, 64).accepted() for path in made]
    assert [summary.rank for summary in found] == [8, 16, 8, 16]


def test_every_adapter_has_an_effect_of_its_own(base, made):
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), made[0], adapter_name="0"
    )
    for index, path in enumerate(made[1:], 1):
        model.load_adapter(path, adapter_name=str(index))
    prompt = torch.arange(3, 20)[None]
    with torch.inference_mode():
        logits = []
        for index in range(len(made)):
            model.set_adapter(str(index))
            logits.append(model(prompt).logits)
        with model.disable_adapter():
            logits.append(model(prompt).logits)
    apart = [float((one - other).abs().max()) for i, one in enumerate(logits) for other in logits[:i]]
    assert min(apart) > 0.1


def test_what_is_there_is_not_made_again(home, base, made):
    before = {path: (path / WEIGHTS_NAME).stat().st_mtime_ns for path in made}
    again = models.adapters(home, base, 6, (8, 16), seed=1)
    assert again[:4] == made
    assert {path: (path / WEIGHTS_NAME).stat().st_mtime_ns for path in made} == before
    assert models.adapters(home, base, 1, (8,), seed=2)[0] not in again

"""`tenora server plan` on a CPU: its figures equal the real allocations of an engine with the same settings."""

import json
import os
import subprocess
import sys

import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from vllm.platforms import current_platform

from app.engine.vllm.platform import this_machine
from app.planning.budget import budget_of
from app.planning.machine import read_base, resolve_slots, serving_of
from app.settings import EngineSettings, Settings
from tests.support.base_configs import TOY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not current_platform.is_cpu(), reason="a GPU engine takes what is free for its KV cache"),
]

#: A KV cache size that is not a whole number of blocks.
ENGINE = EngineSettings(dtype="float32", kv_cache_bytes=2**26 + 12345, extra_args={"skip_tokenizer_init": True})


def test_weights_slots_and_kv_cache_are_as_planned(tmp_path):
    LlamaForCausalLM(LlamaConfig(**TOY)).save_pretrained(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENORA_")}
    environment |= {"TENORA_ENGINE": ENGINE.model_dump_json(), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.engine_memory", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    allocated = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))  # among vLLM's

    base, machine = read_base(tmp_path, engine_dtype=ENGINE.dtype), this_machine()
    slots = resolve_slots(Settings(engine=ENGINE), tmp_path, this_machine)
    budget = budget_of(base, machine, serving_of(ENGINE, base, machine), slots)
    assert slots > 1
    assert allocated["slots"] == budget.slots_bytes
    assert allocated["weights"] == budget.weights
    # All blocks but the one that vLLM reserves.
    block_tokens = 128
    assert (allocated["blocks"] - 1) * block_tokens == budget.kv_tokens
    assert allocated["kv_cache"] == allocated["blocks"] * block_tokens * budget.kv_token
    assert 0 <= budget.kv_cache - allocated["kv_cache"] < block_tokens * budget.kv_token

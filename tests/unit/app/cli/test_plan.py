"""`tenora server plan`: needs only a model config, and names what is wrong with its input."""

import json
import subprocess
import sys

import pytest

from tests.support.base_configs import LARGE

GIB = 2**30


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text(json.dumps(LARGE))
    return str(tmp_path / "base")


def test_it_shows_a_gpus_budget(alone, base):
    shown = alone("plan", "--base", base, "--gpu-memory", "80GiB").stdout
    for part in ("15 GiB", "320 MiB", "32, for 200 adapters", "of max_model_len (8192 tokens)", "padding"):
        assert part in shown


def test_the_same_as_json(alone, base):
    plan = alone.json("plan", "--base", f"{base}/config.json", "--gpu-memory", "80GiB", "--adapters", "32")
    assert plan["budget"]["slots"] == 32
    assert plan["budget"]["slot"] == 320 * 2**20
    assert plan["budget"]["sequences_typical"] == 365
    assert [one["code"] for one in plan["advice"]] == ["padding"]
    assert plan["adapters"] == 32


def test_without_a_gpu_it_is_this_machine_or_what_is_said(alone, base):
    here = alone.json("plan", "--base", base)["budget"]
    said = alone.json("plan", "--base", base, "--memory", "64GiB", "--host-memory", "8GiB", "--kv-cache", "2GiB")
    assert here["kv_cache"] == GIB
    assert (said["budget"]["memory"], said["budget"]["host"]) == (64 * GIB, 8 * GIB)
    assert said["budget"]["kv_cache"] == 2 * GIB


def test_every_choice_reaches_the_budget(alone, base):
    flags = ("--max-loras", "5", "--max-lora-rank", "16", "--max-model-len", "1000", "--tensor-parallel-size", "2")
    plan = alone.json("plan", "--base", base, "--gpu-memory", "24GiB", "--dtype", "float32", *flags)
    assert plan["budget"]["slots"] == 5
    assert plan["serving"]["max_model_len"] == 1000
    # Half of the outputs of q, k, v, gate and up, and half of the inputs of o and down, at 4 bytes each.
    assert plan["budget"]["slot"] == 32 * 16 * 4 * (5 * 4096 + (4096 + 2 * 1024 + 2 * 14336 + 4096 + 14336) // 2 + 8192)


def test_room_for_the_head_costs_each_slot_the_vocabulary(alone, base):
    flags = ("--base", base, "--gpu-memory", "80GiB", "--max-loras", "4")
    without, plan = (alone.json("plan", *flags, *more)["budget"] for more in ((), ("--lora-head",)))
    assert plan["slot"] - without["slot"] == plan["head"] == 64 * 2 * (LARGE["hidden_size"] + LARGE["vocab_size"])
    assert without["head"] == 0
    assert "lm_head" in alone("plan", *flags, "--lora-head").stdout
    assert "lm_head" not in alone("plan", *flags).stdout


@pytest.mark.parametrize(("text", "expected"), [("24G", 24 * GIB), ("24000MB", 24 * 10**9), ("25769803776", 24 * GIB)])
def test_sizes_have_units(alone, base, text, expected):
    plan = alone.json("plan", "--base", base, "--memory", text)
    assert plan["budget"]["memory"] == expected


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-lora-rank", "9"), "'9' is not a supported rank. Choose from 1, 8, 16"),
        (("--max-loras", "0"), "'0' is not a number of slots. Write auto, or 1 to 1024."),
        (("--max-loras", "1025"), "'1025' is not a number of slots. Write auto"),
        (("--gpu-memory", "much"), "'much' is not a size. Write a number"),
        (("--kv-cache", "1KiB"), "'1KiB' is too small. Write 1MiB or more."),
        (("--gpu-memory", "80GiB", "--memory", "80GiB"), "--memory and --gpu-memory exclude each other."),
        (("--tensor-parallel-size", "3"), "num_attention_heads is 32, but must be a multiple of"),
        (("--dtype", "int4"), "int4"),
    ],
)
def test_wrong_usage_is_named(alone, base, flags, said):
    error = alone("plan", "--base", base, *flags, exit_code=2).stderr
    assert said in " ".join(error.replace("│", " ").split())


def test_a_base_that_is_none_is_named(alone, tmp_path):
    assert "--base: There is no file" in alone("plan", "--base", str(tmp_path / "no"), exit_code=2).stderr
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    assert "architectures is" in alone("plan", "--base", str(tmp_path), exit_code=2).stderr


def test_it_starts_without_torch_and_vllm(base):
    code = (
        "import sys; from tenora_client.cli.root import app; app(sys.argv[1:], standalone_mode=False);"
        "sys.exit(bool({'torch', 'vllm', 'fastapi', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, "plan", "--base", base], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr

"""Machine plan: the memory limit of this process, and settings as vLLM resolves them."""

import json

import pytest

from app.engine.vllm.platform import this_machine
from app.planning.base import plan_base
from app.planning.budget import GIB, Machine
from app.planning.machine import default_batch, host_memory, resolve_slots, serving_of
from app.settings import EngineSettings, Settings
from tests.support.base_configs import TOY

TOTAL = 16 * GIB


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:  {TOTAL // 1024} kB\nMemFree:  12 kB\n")
    return tmp_path


def limit(root, groups, files):
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        (root / "sys/fs/cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / path).write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, TOTAL),
        ("0::/\n", {"memory.max": "max\n"}, TOTAL),
        ("0::/\n", {"memory.max": f"{4 * GIB}\n"}, 4 * GIB),
        ("0::/a/b\n", {"a/memory.max": f"{3 * GIB}\n", "a/b/memory.max": "max\n"}, 3 * GIB),
        ("0::/a/b\n", {"a/c/memory.max": f"{GIB}\n"}, TOTAL),
        ("4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2 * GIB),
        ("4:cpu,memory:/gone\n", {"memory/memory.limit_in_bytes": f"{5 * GIB}\n"}, 5 * GIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, TOTAL),
        ("4:cpu:/x\n", {"memory/x/memory.limit_in_bytes": f"{GIB}\n"}, TOTAL),
    ],
)
def test_memory_is_the_machines_or_a_groups_limit(root, groups, files, expected):
    limit(root, groups, files)
    assert host_memory(root) == expected


def test_this_machine_has_memory():
    assert this_machine().memory >= 2**28


def test_a_number_is_taken_as_it_is(tmp_path):
    def unasked():
        raise AssertionError("the machine was asked")

    assert resolve_slots(Settings(engine={"max_loras": 7}), tmp_path / "nothing", unasked) == 7


def test_auto_reads_the_base_and_gives_the_same_number_again(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    first = resolve_slots(Settings(), tmp_path, this_machine)
    assert first == resolve_slots(Settings(), tmp_path, this_machine) >= 1


@pytest.mark.parametrize("spelling", ["max_num_seqs", "max-num-seqs", "--max-num-seqs"])
def test_what_an_extra_argument_says_counts(spelling):
    engine = EngineSettings(extra_args={spelling: 7, "gpu-memory-utilization": 0.5}, max_model_len=99)
    serving = serving_of(engine, plan_base(TOY), Machine(GIB, cpu=False))
    assert (serving.sequences, serving.utilization, serving.max_model_len) == (7, 0.5, 99)
    assert serving.kv_cache_bytes is None


def test_silent_settings_are_vllms_defaults():
    serving = serving_of(EngineSettings(), plan_base(TOY), Machine(GIB, cpu=True))
    assert (serving.sequences, serving.utilization, serving.max_model_len) == (128, 0.92, 512)
    assert serving.kv_cache_bytes == GIB


@pytest.mark.parametrize(("gib", "expected"), [(24, (2048, 256)), (80, (8192, 1024)), (192, (16384, 1024))])
def test_default_batches_grow_with_the_card(gib, expected):
    assert default_batch(Machine(gib * GIB, cpu=False), 1) == expected

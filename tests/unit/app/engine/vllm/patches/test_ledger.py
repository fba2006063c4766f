"""The ledger names everything in vLLM that Tenora changes, and its switches are obeyed in every process."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import envs
from vllm.config import VllmConfig
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion import serving as chat_serving
from vllm.entrypoints.openai.completion import serving
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM

from app.engine.vllm import launch
from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.patches.ledger import LEDGER, OPTIONAL, InvalidPatches, applied, switched_off
from app.engine.vllm.patches.stream_nulls import CompletionStreamEvent
from app.engine.vllm.scheduler import composition
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps
from app.engine.vllm.worker import extension
from app.engine.vllm.worker.in_core_executor import CoreExecutor
from app.settings import EngineSettings, Settings
from tests.support.base_configs import TOY
from tests.support.prefill_machine import Machine
from tests.unit.app.engine.vllm.patches.changes_of_vllm import ROOT, changes, is_known, switches

LISTS = ["all", "none", *sorted(f"-{name}" for name in OPTIONAL)]
THEIRS = "vLLM's own"


def test_the_ledger_needs_no_vllm() -> None:
    code = "import app.engine.vllm.patches.ledger, sys; raise SystemExit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_have_different_names_and_files_that_exist() -> None:
    assert len({patch.name for patch in LEDGER}) == len(LEDGER)
    assert {patch.module for patch in LEDGER if not (ROOT / patch.module).is_file()} == set()


@pytest.mark.parametrize("target", sorted({target for patch in LEDGER for target in patch.targets}))
def test_a_target_exists_in_vllm(target: str) -> None:
    assert is_known(target)


def test_every_change_of_vllm_has_a_row() -> None:
    targets = {patch.module: set[str]() for patch in LEDGER}
    for patch in LEDGER:
        targets[patch.module] |= set(patch.targets)
    everywhere = {target.rpartition(".")[2] for own in targets.values() for target in own}
    missing = [
        change
        for change in changes()
        # A subclass needs a row for its file. Other files may apply a patch.
        if not (
            any(
                target == change.name or target.startswith(f"{change.name}.") for target in targets.get(change.file, ())
            )
            if change.is_subclass
            else change.name in everywhere
        )
    ]
    assert missing == []


def test_exactly_the_optional_patches_have_a_switch() -> None:
    assert switches() == OPTIONAL


def test_lists_of_patches() -> None:
    assert switched_off("all") == frozenset()
    assert switched_off("none") == OPTIONAL
    assert switched_off("-malloc_trim") == {"malloc_trim"}
    assert switched_off("-malloc_trim, -zmq_wakeups") == {"malloc_trim", "zmq_wakeups"}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("-kv_zeroing", "TENORA_ENGINE__PATCHES has -kv_zeroing, but the server cannot run without this patch."),
        ("-malloc_trim,-kv_zeroing", "TENORA_ENGINE__PATCHES has -kv_zeroing"),
        ("-maloc_trim", "TENORA_ENGINE__PATCHES has '-maloc_trim', which is no patch that can be switched off."),
        ("malloc_trim", "TENORA_ENGINE__PATCHES has 'malloc_trim'"),
        ("none,-malloc_trim", "TENORA_ENGINE__PATCHES has 'none'"),
        ("", "TENORA_ENGINE__PATCHES has ''"),
    ],
)
def test_other_lists_are_refused(setting: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidPatches) as refusal:
        engine_arguments(settings(setting), tmp_path, served_name="base", cpu=True, slots=2)
    assert str(refusal.value).startswith(sentence)
    assert all(f"-{name}" in str(refusal.value) for name in OPTIONAL)


def settings(patches: str) -> Settings:
    extra = {"skip_tokenizer_init": True, "enforce_eager": True}
    return Settings(engine=EngineSettings(patches=patches, max_lora_rank=8, extra_args=extra))


def arguments(folder: Path, patches: str) -> list[str]:
    (folder / "config.json").write_text(json.dumps(TOY))
    return engine_arguments(settings(patches), folder, served_name="base", cpu=True, slots=2)


def in_server(folder: Path, patches: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Construct an engine without starting it, and return the optional patches found in this process."""
    given: dict[str, Any] = {}

    def start(config: VllmConfig, **options: Any) -> Any:
        given.update(options, backend=config.parallel_config.distributed_executor_backend)
        return SimpleNamespace()

    monkeypatch.setattr(AsyncLLM, "from_vllm_config", start)
    launch.construct(arguments(folder, patches), folder)
    assert chat_serving.ChatCompletionStreamResponse.__name__ == "ChatStreamEvent", "required"
    found = {
        "in_core_executor": given["backend"] is CoreExecutor,
    }
    assert serving.CompletionStreamResponse is CompletionStreamEvent, "required"
    return {name for name, is_on in found.items() if is_on}


def in_core(config: VllmConfig) -> set[str]:
    """Create the scheduler as the engine core does, and return the optional patches found in its process."""
    wakeups = SpinCondition.record_read
    scheduler = Machine(config, [0.0], composition.scheduler).scheduler
    found = {
        "prefill_chunking": isinstance(scheduler, BoundedSteps),
        "zmq_wakeups": SpinCondition.record_read is not wakeups,
    }
    return {name for name, is_on in found.items() if is_on}


def in_worker(config: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Prepare a worker without a model, and return the optional patches found in its process."""
    frozen: list[bool] = []
    wakeups = SpinCondition.record_read
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    monkeypatch.setattr(extension, "keep_seeds", lambda _runner: None)
    monkeypatch.setattr(extension.WorkerExtension, "_tenora_group_tokens", lambda *_: None)
    workers = SimpleNamespace(_adapter_manager=None)
    worker = extension.WorkerExtension()
    worker.vllm_config, worker.model_runner = config, SimpleNamespace(lora_manager=workers)  # type: ignore[attr-defined]
    worker.tenora_prepare()
    stager = worker._tenora_stager
    stager._threads.shutdown()
    found = {
        "heap_freeze": bool(frozen),
        "zmq_wakeups": SpinCondition.record_read is not wakeups,
        "malloc_trim": stager._malloc_trim is not None,
    }
    return {name for name, is_on in found.items() if is_on}


@pytest.fixture
def config_of(tmp_path: Path) -> Any:
    """Function from a list of patches to vLLM's configuration, as its processes get it."""

    def made(patches: str) -> VllmConfig:
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments(tmp_path, patches))
        config: VllmConfig = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        config.scheduler_config.scheduler_cls = launch.SCHEDULER
        assert config.scheduler_config.get_scheduler_cls() is composition.scheduler
        return config

    return made


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Restore vLLM after each test."""
    for owner, name in (
        (serving, "CompletionStreamResponse"),
        (serving, "CompletionResponseStreamChoice"),
        (chat_serving, "ChatCompletionStreamResponse"),
        (engine_utils, "get_mp_context"),
        (SpinCondition, "record_read"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    variables = dict(os.environ)
    yield
    envs.disable_envs_cache()
    os.environ.clear()
    os.environ.update(variables)


@pytest.mark.parametrize("patches", LISTS)
def test_what_is_switched_off_is_applied_in_no_process(
    patches: str, tmp_path: Path, config_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(patches)
    expected = OPTIONAL - switched_off(patches)
    assert applied(config.additional_config) == expected
    server = {"in_core_executor"}
    core = {"prefill_chunking", "zmq_wakeups"}
    worker = {"heap_freeze", "zmq_wakeups", "malloc_trim"}
    assert server | core | worker == OPTIONAL
    with monkeypatch.context() as context:
        assert in_server(tmp_path, patches, context) == expected & server
    with monkeypatch.context() as context:
        context.setattr(SpinCondition, "record_read", SpinCondition.record_read)
        assert in_core(config) == expected & core
    with monkeypatch.context() as context:
        context.setattr(SpinCondition, "record_read", lambda _self: None)
        assert in_worker(config, context) == expected & worker

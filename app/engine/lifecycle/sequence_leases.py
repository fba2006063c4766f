"""Sequences of one request: each enters the engine on its admission, and releases its place when it ends.

vLLM gets the whole request at once, and makes an internal request for each sequence. Its output processor knows all of
them from the beginning, so answers, streams and aborts work as in vLLM. Its core gets each sequence on its admission.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from app.engine.port import EngineRequest
from app.engine.residency.adapter_loader import AdapterLoader, LoadedLease
from app.engine.residency.admission_queue import AdmissionQueue, LaterSequences
from app.engine.vllm.instance import EngineInstance
from app.engine.vllm.output_log import Place, RequestUsage, SequenceUsage
from app.scheduling.admission_request import AdmissionRequest

logger = logging.getLogger(__name__)


class SequenceLeases:
    """Leases of a request's sequences.

    Attributes:
        all_ended: callback, called once every sequence has ended in the engine.
    """

    def __init__(
        self,
        request: EngineRequest,
        admission: AdmissionRequest,
        *,
        instance: EngineInstance,
        loader: AdapterLoader,
        queue: AdmissionQueue,
    ) -> None:
        self._request, self._admission = request, admission
        self._instance, self._loader, self._queue = instance, loader, queue
        self._choices = admission.sequences // len(admission.prompts)
        self._leases: dict[int, LoadedLease] = {}
        self._ended = 0
        self._feeding: asyncio.Task[None] | None = None
        self.all_ended: Callable[[], None] = lambda: None

    async def begin(self) -> LoadedLease:
        """Wait until the first sequence may run. The others follow in the background.

        Raises: as :meth:`AdapterLoader.lease`.
        """
        later_sequences = self._queue.later(self._admission) if self._admission.sequences > 1 else None
        key = self._request.adapter
        try:
            lease = await (self._loader.lease(self._admission, key) if key else self._loader.enter(self._admission))
        except BaseException:
            if later_sequences:
                later_sequences.close()
            raise
        self._leases[0] = lease
        if later_sequences:
            self._instance.gate.expect(self._request.request_id)
            self._feeding = asyncio.create_task(self._feed(later_sequences))
        return lease

    def release(self, usage: RequestUsage) -> None:
        """Settle the cost of all sequences after the request's end or abort, and admit no further ones."""
        if self._feeding:
            self._feeding.cancel()
            self._instance.gate.forget(self._request.request_id)
        used = {self._number(place): sequence for place, sequence in usage.sequences.items()}
        for number, lease in self._leases.items():
            sequence = used.get(number)
            lease.release(
                prompt_tokens=sequence.prompt_tokens if sequence else 0,
                output_tokens=sequence.output_tokens if sequence else 0,
            )
        self._leases.clear()

    def began(self, place: Place) -> None:
        self._queue.prefilled(self._name(place))

    def grew(self, place: Place, output_tokens: int) -> None:
        self._queue.generated(self._name(place), output_tokens)

    def ended(self, sequence: SequenceUsage) -> None:
        self._ended += 1
        if self._ended == self._admission.sequences:
            self.all_ended()
        elif lease := self._leases.pop(self._number(sequence.place), None):
            lease.release(prompt_tokens=sequence.prompt_tokens, output_tokens=sequence.output_tokens)

    async def _feed(self, later_sequences: LaterSequences) -> None:
        """Let each sequence into the engine on its admission."""
        gate, request_id = self._instance.gate, self._request.request_id
        try:
            await gate.open(request_id, (0, 0), self._queue.start_tag(request_id))
            async with contextlib.aclosing(self._loader.later(later_sequences, self._request.adapter)) as leases:
                async for number, lease in leases:
                    self._leases[number] = lease
                    start_tag = self._queue.start_tag(self._admission.name(number))
                    await gate.open(request_id, divmod(number, self._choices), start_tag)
        except Exception as error:  # noqa: BLE001 - passed on to the caller that waits for the answer
            logger.warning("A sequence of request %s cannot run: %r", request_id, error)
            self._instance.fail(self._request, error)

    def _number(self, place: Place) -> int:
        prompt, choice = place
        return prompt * self._choices + choice

    def _name(self, place: Place) -> str:
        return self._admission.name(self._number(place))

"""Which requests had NaN among their logits."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_REMEMBERED = 10_000


class NanLog:
    """Request ids whose logits held NaN at any step, the newest 10,000 of them.

    vLLM counts them in its sampler (``VLLM_COMPUTE_NANS_IN_LOGITS``) and reports them with every step's outputs, but
    puts them into no answer. So they are read where the steps' outputs arrive, in this process.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def was_finite(self, request_id: str) -> bool:
        return request_id not in self._ids

    def watch(self, processor: Any) -> None:
        """Read every output that reaches vLLM's output processor, before the answer that it belongs to can end."""
        process: Callable[..., Any] = processor.process_outputs

        def noting(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            for output in outputs:
                if output.num_nans_in_logits and (state := processor.request_states.get(output.request_id)):
                    self._note(state.external_req_id)
            return process(outputs, *args, **kwargs)

        processor.process_outputs = noting

    def _note(self, external_id: str) -> None:
        self._ids[own_id(external_id)] = None
        while len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)


def own_id(external_id: str) -> str:
    """The request's id as Tenora made it: ``cmpl-<id>-<prompt>`` and ``chatcmpl-<id>`` are vLLM's."""
    kind, _, rest = external_id.partition("-")
    return rest.rpartition("-")[0] if kind == "cmpl" else rest

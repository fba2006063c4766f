"""Oracle of token parity: transformers + PEFT on the same weights, in float32, greedy, on one thread."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


class PeftReference:
    """Base model and its adapters, computed by PEFT.

    Args:
        base: folder of the base model.
        adapters: adapter name -> folder.
    """

    def __init__(self, base: Path, adapters: dict[str, Path]) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self._model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self._has_adapters = bool(adapters)
        for number, (name, folder) in enumerate(adapters.items()):
            if number == 0:
                self._model = PeftModel.from_pretrained(self._model, folder, adapter_name=name)
            else:
                self._model.load_adapter(folder, adapter_name=name)
        self._model.eval()

    def greedy(
        self, prompt_token_ids: list[int], adapter: str | None, max_new_tokens: int, ignore_eos: bool = False
    ) -> list[int]:
        """Return the greedy continuation.

        Its last token is the end token if the model ended it, as in vLLM's answers.
        """
        answer: list[int] = []
        ids, cache = torch.tensor([prompt_token_ids]), None
        with torch.inference_mode(), _one_thread(), self._applied(adapter):
            while len(answer) < max_new_tokens:
                output = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                answer.append(int(output.logits[0, -1].argmax()))
                if answer[-1] == self.tokenizer.eos_token_id and not ignore_eos:
                    break
                ids = torch.tensor([answer[-1:]])
        return answer

    def greedy_all(self, requests: Iterable[tuple[list[int], str | None]], max_new_tokens: int) -> list[list[int]]:
        """Compute :meth:`greedy` for each (prompt token ids, adapter), deduplicating repeated pairs."""
        known: dict[tuple[tuple[int, ...], str | None], list[int]] = {}
        answers = []
        for ids, adapter in requests:
            asked = (tuple(ids), adapter)
            if asked not in known:
                known[asked] = self.greedy(ids, adapter, max_new_tokens)
            answers.append(known[asked])
        return answers

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt as /v1/completions takes it, <s> first."""
        return list(self.tokenizer(text).input_ids)

    def chat_ids(self, messages: list[dict[str, Any]], **template_arguments: Any) -> list[int]:
        """Return the token ids of a chat, ready for the answer."""
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, **template_arguments
        )
        return list(ids)

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @contextmanager
    def _applied(self, adapter: str | None) -> Iterator[None]:
        if adapter is not None:
            self._model.set_adapter(adapter)
            yield
        elif self._has_adapters:
            with self._model.disable_adapter():
                yield
        else:
            yield


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

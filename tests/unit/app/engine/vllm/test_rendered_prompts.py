"""A prompt rendered by the server passes vLLM's chat path unchanged, regardless of the base's template."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.renderers.params import merge_kwargs

from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.translation import AS_IT_IS
from app.settings import Settings

PROMPT = "<s>[INST] {{ 7 * 7 }}{% raw %}\n\n \\n <b>Käse</b> & {{ prompt }}\n[/INST] \n"

#: Attributes of the model configuration that vLLM reads on this path.
STUB: Any = SimpleNamespace(
    model="",
    tokenizer="",
    revision=None,
    code_revision=None,
    tokenizer_revision=None,
    trust_remote_code=False,
    hf_config=SimpleNamespace(model_type="llama"),
)


def tokenizer(folder: Path, template: str | None) -> PreTrainedTokenizerBase:
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    words.chat_template = template
    words.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("template", [None, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_vllm_prints_the_prompt_as_it_is(tmp_path: Path, template: str | None) -> None:
    request = ChatCompletionRequest.model_validate(
        {
            "model": "m",
            "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}],
            "chat_template": AS_IT_IS,
            "chat_template_kwargs": {"prompt": PROMPT},
        }
    )
    assert not request.add_special_tokens, "the prompt has its BOS already"
    # The same parameters as in OnlineRenderer.preprocess_chat.
    params = request.build_chat_params(None, "auto").with_defaults(
        merge_kwargs(None, {"tools": None, "tokenize": False})
    )
    words = tokenizer(tmp_path, template)
    form = resolve_chat_template_content_format(params.chat_template, None, "auto", words, model_config=STUB)
    assert form == "string"
    text = safe_apply_chat_template(STUB, words, request.messages, **params.get_apply_chat_template_kwargs())
    assert text == PROMPT


def test_the_engine_takes_a_template_beside_the_messages(tmp_path: Path) -> None:
    assert "--trust-request-chat-template" in engine_arguments(
        Settings(), tmp_path, served_name="base", cpu=True, slots=4
    )
    refusal = OnlineRenderer.validate_chat_template(
        None, AS_IT_IS, {"prompt": PROMPT}, trust_request_chat_template=True
    )
    assert refusal is None

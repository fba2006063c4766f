"""Fields of all request bodies of inference: supported, ignored and refused, by API.

This is the only list. The checks of the routes, the OpenAPI document, the tables in docs/http.md and the tests are made
from it. A field that is in no list of its API is refused by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import field_checks, structured
from app.services.bodies.field_checks import (
    Check,
    anything,
    boolean,
    integer,
    integer_up_to,
    number,
    one_of,
    supported_only,
)
from app.services.bodies.messages import messages
from app.settings import LimitSettings

MAX_TOKENS = 2**31 - 1

#: Fields that name the model. The services read them.
MODEL_FIELDS = frozenset({"model", "adapter_id"})

_MODEL = "see [Model names](#model-names)"
_TRUE_OR_FALSE = "true or false"
_AS_CHAT = "as in a chat"
_NO_STATE = (
    "This server keeps no conversations. Send the whole conversation in input. "
    "With the AI SDK, set providerOptions.openai.store = false."
)


class Supported(NamedTuple):
    """A supported field.

    Attributes:
        check: check of its value. Translations check values that they take apart.
        allowed: allowed values, as Markdown for docs/http.md.
    """

    check: Check
    allowed: str


@dataclass(frozen=True)
class FieldTable:
    """Fields of one API's bodies.

    Attributes:
        ignored: fields that cannot change the answer. They are not checked.
        refused: known fields that are refused -> how to do without them.
        required: fields without which there is no request.
        nested: ignored fields inside others, as the header ``x-tenora-ignored`` names them. For the documentation.
        named: whether the fields :data:`MODEL_FIELDS` name the model. They are not among the supported ones then.
    """

    supported: Mapping[str, Supported]
    ignored: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    named: bool = True

    @cached_property
    def checks(self) -> dict[str, Check]:
        """Checks of the supported and the ignored fields."""
        checks = {name: supported.check for name, supported in self.supported.items()}
        return dict.fromkeys(sorted(self.ignored), anything) | checks

    @property
    def names(self) -> set[str]:
        """Fields that may be sent."""
        return {*self.supported, *self.ignored, *(MODEL_FIELDS if self.named else ())}

    def checked(self, body: Mapping[str, Any], limits: LimitSettings) -> dict[str, Any]:
        """Check a body field by field. A field that is null counts as not sent.

        Returns:
            The fields that were sent, without those that name the model at the top level.

        Raises:
            InvalidRequest, UnsupportedField
        """
        checked: dict[str, Any] = {}
        for name, value in body.items():
            if value is None or (self.named and name in MODEL_FIELDS):
                continue
            if name in self.refused:
                raise UnsupportedField(f"{name} is not supported. {self.refused[name]}", param=name)
            check = self.checks.get(name)
            if check is None:
                raise UnsupportedField(f"The field {name[:80]} is not supported.", param=name[:80])
            checked[name] = check(value, name, limits)
        for name in self.required:
            if name not in checked:
                raise InvalidRequest(f"{name} is missing.", param=name)
        return checked

    def ignored_in(self, body: Mapping[str, Any]) -> Iterator[str]:
        """Return the names of ignored fields in a body."""
        return (name for name, value in body.items() if name in self.ignored and value is not None)


#: Parameters of sampling that all APIs of this server accept under the same names.
SAMPLING: dict[str, Supported] = {
    "temperature": Supported(number(0, 2), "0 to 2"),
    "top_p": Supported(number(0, 1, above=True), "above 0, up to 1"),
    "top_k": Supported(integer(-1, MAX_TOKENS), "-1 (off) or more"),
    "min_p": Supported(number(0, 1), "0 to 1"),
    "presence_penalty": Supported(number(-2, 2), "-2 to 2"),
    "frequency_penalty": Supported(number(-2, 2), "-2 to 2"),
    # Logits are divided by the penalty. Values closer to zero make them infinite.
    "repetition_penalty": Supported(number(0.01, 100), "0.01 to 100"),
    "seed": Supported(integer(-(2**63), 2**63 - 1), "a 64-bit integer"),
    "stop_token_ids": Supported(field_checks.stop_token_ids, "up to 128 token ids"),
    "min_tokens": Supported(integer(0, MAX_TOKENS), "0 or more"),
    "logit_bias": Supported(field_checks.logit_bias, "up to 300 token ids, each with -100 to 100"),
    "ignore_eos": Supported(boolean, _TRUE_OR_FALSE),
}
_STOP = Supported(
    field_checks.stop,
    "a string or up to 16 (`TENORA_LIMITS__STOP`) of 1 to 256 bytes (`TENORA_LIMITS__STOP_BYTES`)",
)
_STREAM = Supported(boolean, _TRUE_OR_FALSE)
_USER = Supported(field_checks.user, "up to 512 characters")
_GUIDED = "older names of the same; only one constraint per request"

#: Fields of OpenAI's completions and chats.
OPENAI: dict[str, Supported] = {
    **SAMPLING,
    "n": Supported(integer_up_to("n", 1), "1 to 8 (`TENORA_LIMITS__N`)"),
    "stop": _STOP,
    "skip_special_tokens": Supported(boolean, _TRUE_OR_FALSE),
    "spaces_between_special_tokens": Supported(boolean, _TRUE_OR_FALSE),
    "include_stop_str_in_output": Supported(boolean, _TRUE_OR_FALSE),
    "return_token_ids": Supported(boolean, _TRUE_OR_FALSE),
    "stream": _STREAM,
    "stream_options": Supported(
        field_checks.stream_options, "with `stream` only: `include_usage`, `continuous_usage_stats`"
    ),
    "user": _USER,
    "response_format": Supported(structured.response_format, "`text`, `json_object`, `json_schema`"),
    "structured_outputs": Supported(
        structured.structured_outputs,
        "exactly one of `json`, `regex`, `choice`, `json_object`; and `disable_any_whitespace`, "
        "`disable_additional_properties`",
    ),
    "guided_json": Supported(structured.json_constraint, _GUIDED),
    "guided_regex": Supported(structured.regex, _GUIDED),
    "guided_choice": Supported(structured.choice, _GUIDED),
}

#: OpenAI's fields about its platform, its caches and reasoning effort. None changes this base's answers. ``user`` is
#: not among them: it selects the version where an alias splits its traffic.
_OF_THE_PLATFORM = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
    }
)

COMPLETIONS = FieldTable(
    OPENAI
    | {
        "prompt": Supported(
            field_checks.prompt, "a text, token ids, or up to 128 (`TENORA_LIMITS__PROMPTS`) of one kind; required"
        ),
        "max_tokens": Supported(integer(0, MAX_TOKENS), "1 or more, or 0 with `echo`"),
        "logprobs": Supported(integer_up_to("logprobs", 0), "0 to 20 (`TENORA_LIMITS__LOGPROBS`)"),
        "echo": Supported(boolean, "true or false; not with `logprobs` where `TENORA_ENGINE__LORA_HEAD` is on"),
        "best_of": Supported(integer_up_to("n", 1), "the value of `n`"),
    },
    ignored=_OF_THE_PLATFORM,
    required=("prompt",),
    nested=("stream_options.include_obfuscation",),
)

_MESSAGES = "1 to 2,048 messages; required"
_TOOLS = "up to 128 functions with `name`, `description`, `parameters`, `strict`"
_TOOL_CHOICE = "`none`, `auto`, `required`, or one of the tools"

CHAT = FieldTable(
    OPENAI
    | {
        "messages": Supported(messages, _MESSAGES),
        "max_tokens": Supported(integer(1, MAX_TOKENS), "1 or more"),
        "max_completion_tokens": Supported(integer(1, MAX_TOKENS), "1 or more"),
        "logprobs": Supported(boolean, _TRUE_OR_FALSE),
        "top_logprobs": Supported(
            integer_up_to("logprobs", 0), "with `logprobs` only: 0 to 20 (`TENORA_LIMITS__LOGPROBS`)"
        ),
        "tools": Supported(structured.tools, _TOOLS),
        "tool_choice": Supported(structured.tool_choice, _TOOL_CHOICE),
        "parallel_tool_calls": Supported(boolean, _TRUE_OR_FALSE),
        # Only values that request the default behaviour are accepted.
        "modalities": Supported(one_of(["text"]), 'only the default, `["text"]`'),
        "verbosity": Supported(supported_only("medium"), "only the default, `medium`"),
        "functions": Supported(supported_only([]), "only the default, `[]`"),
        "function_call": Supported(supported_only("none", "auto"), "only the default, `none` or `auto`"),
    },
    ignored=_OF_THE_PLATFORM,
    required=("messages",),
    nested=("stream_options.include_obfuscation",),
)

RESPONSES = FieldTable(
    {
        "input": Supported(
            anything,
            "a text, or items: messages, `function_call`, `function_call_output`; required. "
            "Items of type `reasoning` are ignored",
        ),
        "instructions": Supported(
            lambda value, path, _: field_checks.text(value, path), "a text: a system message in front of `input`"
        ),
        "max_output_tokens": Supported(integer(1, MAX_TOKENS), "1 or more"),
        "tools": Supported(anything, _TOOLS),
        "tool_choice": Supported(anything, _TOOL_CHOICE),
        "parallel_tool_calls": Supported(boolean, _TRUE_OR_FALSE),
        "text": Supported(
            anything, "`format`: `text`, `json_object`, `json_schema`; `verbosity`: only the default, `medium`"
        ),
        "metadata": Supported(
            field_checks.metadata,
            "up to 16 names of up to 64 characters with texts of up to 512; the answer repeats them",
        ),
        "stream": _STREAM,
        "stream_options": Supported(anything, "with `stream` only"),
        "include": Supported(anything, "`message.output_text.logprobs`; OpenAI's other values are ignored"),
        "top_logprobs": Supported(integer_up_to("logprobs", 0), "0 to 20 (`TENORA_LIMITS__LOGPROBS`)"),
        "user": _USER,
        "truncation": Supported(supported_only("disabled"), "only the default, `disabled`"),
        "background": Supported(supported_only(False), "only the default, false"),
        **SAMPLING,
        "stop": _STOP,
    },
    ignored=frozenset(
        {
            "max_tool_calls",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "reasoning",
            "safety_identifier",
            "service_tier",
            "store",
        }
    ),
    refused={
        "previous_response_id": _NO_STATE,
        "conversation": _NO_STATE,
        "prompt": "This server keeps no prompt templates. Send the text in instructions and input.",
        "context_management": "Shorten the conversation in input instead.",
    },
    required=("input",),
    nested=("stream_options.include_obfuscation", "input[].reasoning", "input[].id", "input[].status"),
)

_NO_CONTAINER = "This server runs no code and no tools. Define tools in tools, and run them in your application."
_SYSTEM = Supported(anything, "a text or text blocks")
_CONVERSATION: dict[str, Supported] = {
    "messages": Supported(
        anything, "1 to 2,048 turns of `user`, `assistant` or `system`, the last one not of the assistant; required"
    ),
    "system": _SYSTEM,
    "tools": Supported(anything, "up to 128 tools with `name`, `description`, `input_schema`, `strict`"),
    "tool_choice": Supported(anything, "`auto`, `any`, `none`, or `tool` with a `name`; `disable_parallel_tool_use`"),
    "output_config": Supported(anything, "`format`: `json_schema`"),
    "context_management": Supported(
        anything, "only edits of type `clear_thinking_...`, which are ignored because thinking is"
    ),
}
_ANTHROPIC_IGNORED = frozenset(
    {"cache_control", "diagnostics", "inference_geo", "metadata", "service_tier", "speed", "thinking"}
)
_ANTHROPIC_REFUSED = {
    "container": _NO_CONTAINER,
    "mcp_servers": _NO_CONTAINER,
    "output_format": "Send the schema in output_config.format.",
}
_ANTHROPIC_NESTED = (
    "messages[].content[].thinking",
    "messages[].content[].redacted_thinking",
    "messages[].content[].cache_control",
    "system[].cache_control",
    "system[].x-anthropic-billing-header",
    "tools[].cache_control",
    "output_config.effort",
)

MESSAGES = FieldTable(
    {
        **_CONVERSATION,
        "max_tokens": Supported(integer(1, MAX_TOKENS), "1 or more; required"),
        "stop_sequences": Supported(
            field_checks.stop,
            "up to 16 (`TENORA_LIMITS__STOP`) strings of 1 to 256 bytes (`TENORA_LIMITS__STOP_BYTES`)",
        ),
        "stream": _STREAM,
        **SAMPLING,
    },
    ignored=_ANTHROPIC_IGNORED,
    refused=_ANTHROPIC_REFUSED,
    required=("messages", "max_tokens"),
    nested=_ANTHROPIC_NESTED,
)

COUNT_TOKENS = FieldTable(
    _CONVERSATION,
    ignored=_ANTHROPIC_IGNORED,
    refused=_ANTHROPIC_REFUSED,
    required=("messages",),
    nested=_ANTHROPIC_NESTED,
)

TOKENIZE = FieldTable(
    {
        "prompt": Supported(
            lambda value, path, _: field_checks.text(value, path), "a text; either `prompt` or `messages` is required"
        ),
        "messages": Supported(messages, f"1 to 2,048 messages, {_AS_CHAT}"),
        "tools": Supported(structured.tools, f"with `messages` only, {_AS_CHAT}"),
        "add_special_tokens": Supported(boolean, "with `prompt` only; default true, as in a completion"),
        "return_token_strs": Supported(boolean, "true or false: also list the text of each token"),
        "user": _USER,
    },
)

DETOKENIZE = FieldTable(
    {"tokens": Supported(field_checks.tokens, "token ids; required"), "user": _USER},
    required=("tokens",),
)

# lorax-client sends every parameter, most of them as null, and null counts as not sent. These are not supported, so
# a value that asks for them is refused: merged_adapters, api_token, watermark, adapter sources other than this server.
#: Fields of ``parameters`` on LoRAX's routes.
LORAX = FieldTable(
    {
        "adapter_id": Supported(lambda value, path, _: field_checks.text(value, path), _MODEL),
        "adapter_source": Supported(one_of("local"), "`local`"),
        "max_new_tokens": Supported(integer(1, MAX_TOKENS), "1 or more; default 256 (`TENORA_LIMITS__MAX_NEW_TOKENS`)"),
        "do_sample": Supported(boolean, _TRUE_OR_FALSE),
        "temperature": Supported(number(0, 2), "0 to 2"),
        "top_k": Supported(integer(1, MAX_TOKENS), "1 or more"),
        "top_p": Supported(number(0, 1, above=True), "above 0, up to 1"),
        "repetition_penalty": Supported(number(0.01, 100), "0.01 to 100"),
        "frequency_penalty": Supported(number(-2, 2), "-2 to 2"),
        "presence_penalty": Supported(number(-2, 2), "-2 to 2"),
        "seed": Supported(integer(0, 2**63 - 1), "0 or more"),
        "stop": Supported(field_checks.stop, "as on the OpenAI routes; the stop string stays in the text"),
        "truncate": Supported(integer(1, MAX_TOKENS), "number of the prompt's last tokens to keep"),
        "best_of": Supported(
            integer_up_to("n", 1),
            "1 to 8 (`TENORA_LIMITS__N`); above 1 only with sampling, without `seed` and streaming",
        ),
        "return_full_text": Supported(boolean, _TRUE_OR_FALSE),
        "details": Supported(boolean, _TRUE_OR_FALSE),
        "ignore_eos_token": Supported(boolean, _TRUE_OR_FALSE),
        "decoder_input_details": Supported(
            boolean, "true or false; not with streaming, not where `TENORA_ENGINE__LORA_HEAD` is on"
        ),
        "return_k_alternatives": Supported(integer_up_to("logprobs", 1), "1 to 20 (`TENORA_LIMITS__LOGPROBS`)"),
        "response_format": Supported(
            structured.lorax_format, '`{"type": "json_object", "schema": {...}}`, the schema is optional'
        ),
        "watermark": Supported(one_of(False), "false"),
        "apply_chat_template": Supported(one_of(False), "false"),
    },
    # It could change the answer and is ignored all the same, the only exception to the rule. LangChain's client of this
    # protocol sends 0.95 with every request.
    ignored=frozenset({"typical_p"}),
    named=False,
)

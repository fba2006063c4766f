"""OpenAPI fragments of the inference routes. Request bodies are generated from the list of fields."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from app.api import anthropic_schemas, lorax_schemas, openai_schemas, responses_schemas
from app.api.inference_headers import DEADLINE, IGNORED
from app.api.openapi_components import event_stream, reference, schemas_of
from app.services.bodies import field_table
from app.services.bodies.field_table import LORAX, MODEL_FIELDS, FieldTable

_MODEL = (
    "Name of the model: `adapter`, `adapter:alias`, `adapter@number`, or `owner/adapter` for a shared one. "
    "The base model's name or nothing: the base."
)
_IGNORED = "Ignored, because it cannot change the answer"

#: Types of fields that mean the same in every API that has them.
_COMMON: dict[str, Any] = {
    **dict.fromkeys(("model", "adapter_id", "user"), str),
    **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"), float),
    "repetition_penalty": float,
    **dict.fromkeys(("top_k", "seed", "min_tokens", "n", "best_of", "max_tokens", "top_logprobs"), int),
    "stop_token_ids": list[int],
    "logit_bias": dict[str, float],
    **dict.fromkeys(("ignore_eos", "stream", "parallel_tool_calls", "add_special_tokens"), bool),
    "stop": str | list[str],
}
_OPENAI: dict[str, Any] = {
    **_COMMON,
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"), bool),
    "return_token_ids": bool,
    "stream_options": openai_schemas.StreamOptions,
    "response_format": openai_schemas.ResponseFormat,
    "structured_outputs": openai_schemas.StructuredOutputs,
    "guided_json": dict[str, Any] | str,
    "guided_regex": str,
    "guided_choice": list[str],
    "messages": list[openai_schemas.ChatMessage],
    "tools": list[openai_schemas.ChatTool],
}
_COMPLETION: dict[str, Any] = {
    **_OPENAI,
    "prompt": str | list[str] | list[int] | list[list[int]],
    "logprobs": int,
    "echo": bool,
}
_CHAT: dict[str, Any] = {
    **_OPENAI,
    "max_completion_tokens": int,
    "logprobs": bool,
    "tool_choice": Literal["none", "auto", "required"] | openai_schemas.ChatToolChoice,
    "modalities": list[Literal["text"]],
    "verbosity": Literal["medium"],
    "functions": list[dict[str, Any]],
    "function_call": Literal["none", "auto"],
}
_RESPONSE: dict[str, Any] = {
    **_COMMON,
    "input": str | list[responses_schemas.InputItem],
    "instructions": str,
    "max_output_tokens": int,
    "tools": list[responses_schemas.ResponseTool],
    "tool_choice": Literal["none", "auto", "required"] | responses_schemas.ResponseToolChoice,
    "text": responses_schemas.ResponseTextOptions,
    "metadata": dict[str, str],
    "stream_options": responses_schemas.ResponseStreamOptions,
    "include": list[str],
    "truncation": Literal["disabled"],
    "background": Literal[False],
}
_MESSAGE: dict[str, Any] = {
    **_COMMON,
    "messages": list[anthropic_schemas.MessageTurn],
    "system": str | list[anthropic_schemas.TextBlock],
    "tools": list[anthropic_schemas.MessageTool],
    "tool_choice": anthropic_schemas.MessageToolChoice,
    "output_config": anthropic_schemas.MessageOutputConfig,
    "context_management": anthropic_schemas.ContextManagement,
    "stop_sequences": str | list[str],
}
_TOKENS: dict[str, Any] = {**_OPENAI, "prompt": str, "return_token_strs": bool, "tokens": list[int]}
_LORAX: dict[str, Any] = {
    **_COMMON,
    "adapter_source": Literal["local"],
    **dict.fromkeys(("max_new_tokens", "truncate", "return_k_alternatives"), int),
    **dict.fromkeys(("do_sample", "return_full_text", "details", "ignore_eos_token", "decoder_input_details"), bool),
    "response_format": lorax_schemas.LoraxResponseFormat,
    "watermark": Literal[False],
    "apply_chat_template": Literal[False],
}


def _request(name: str, table: FieldTable, types: dict[str, Any], description: str) -> type[BaseModel]:
    """Build the model of a body from the fields of its API. Null counts as not sent."""
    fields: dict[str, Any] = {}
    for field in sorted(table.names, key=lambda field: (field not in table.required, field)):
        if field in table.required:
            fields[field] = (types[field], Field(description=_allowed(table, field)))
        else:
            kind = Any if field in table.ignored else types[field] | None
            fields[field] = (kind, Field(None, description=_allowed(table, field)))
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=description, **fields)


def _allowed(table: FieldTable, field: str) -> str:
    if field in MODEL_FIELDS:
        return _MODEL
    text = _IGNORED if field in table.ignored else table.supported[field].allowed
    return text[0].upper() + text[1:]


LoraxParameters = _request("LoraxParameters", LORAX, _LORAX, "Parameters of a generation.")


class LoraxRequest(BaseModel):
    """Body of LoRAX's routes."""

    model_config = ConfigDict(extra="forbid")

    inputs: str = Field(min_length=1, description="Prompt")
    parameters: LoraxParameters | None = None  # type: ignore[valid-type]  # a model that create_model built
    stream: bool | None = Field(None, description="Whether to stream; only `POST /` reads it")


_COMPLETION_REQUEST = _request(
    "CompletionRequest", field_table.COMPLETIONS, _COMPLETION, "Body of OpenAI's completions."
)
_CHAT_REQUEST = _request("ChatCompletionRequest", field_table.CHAT, _CHAT, "Body of OpenAI's chat completions.")
_RESPONSE_REQUEST = _request("ResponseRequest", field_table.RESPONSES, _RESPONSE, "Body of OpenAI's Responses.")
_MESSAGE_REQUEST = _request("MessageRequest", field_table.MESSAGES, _MESSAGE, "Body of Anthropic's Messages.")
_COUNT_REQUEST = _request(
    "TokenCountRequest", field_table.COUNT_TOKENS, _MESSAGE, "Body of Anthropic's count of tokens."
)
_TOKENIZE_REQUEST = _request(
    "TokenizeRequest", field_table.TOKENIZE, _TOKENS, "A text or a conversation. Send either `prompt` or `messages`."
)
_DETOKENIZE_REQUEST = _request("DetokenizeRequest", field_table.DETOKENIZE, _TOKENS, "Tokens of a text.")

_MODELS: list[type[BaseModel]] = [
    *(_COMPLETION_REQUEST, _CHAT_REQUEST, _RESPONSE_REQUEST, _MESSAGE_REQUEST, _COUNT_REQUEST),
    *(_TOKENIZE_REQUEST, _DETOKENIZE_REQUEST, LoraxRequest),
    *(openai_schemas.Completion, openai_schemas.ChatCompletion, openai_schemas.Tokens, openai_schemas.DetokenizedText),
    *(
        responses_schemas.ResponseObject,
        anthropic_schemas.Message,
        anthropic_schemas.TokenCount,
        lorax_schemas.LoraxAnswer,
    ),
]
#: Data of events, by the component's name.
_EVENTS: dict[str, Any] = {
    "CompletionEventData": openai_schemas.CompletionEventData,
    "ChatEventData": openai_schemas.ChatEventData,
    "ResponseEventData": responses_schemas.ResponseEventData,
    "MessageEventData": anthropic_schemas.MessageEventData,
    "LoraxEventData": lorax_schemas.LoraxEventData,
}
_DONE = "[DONE]"
_EVENTS_OF_ANSWER = "Events of the answer. An error ends the stream with an event."


def components() -> dict[str, Any]:
    """Return the schemas of bodies, answers and events by their names."""
    return schemas_of({model.__name__: model for model in _MODELS} | _EVENTS)


_IGNORED_HEADER = {
    "description": "Names of request fields that were ignored because they cannot change the answer",
    "schema": {"type": "string"},
}


def _documented(
    body: type[BaseModel],
    answer: dict[str, Any] | None,
    events: str | None = None,
    *,
    description: str = "Answer",
    end: str | None = None,
) -> dict[str, Any]:
    """Build an ``openapi_extra`` fragment.

    Args:
        answer: schema of a whole answer; None if the route only streams.
        events: component of an event's data; None if the route never streams.
        end: data of the last event, if that is not JSON.
    """
    content: dict[str, Any] = {} if answer is None else {"application/json": {"schema": answer}}
    if events is not None:
        content["text/event-stream"] = {"schema": event_stream(reference(events), _EVENTS_OF_ANSWER, end=end)}
    return {
        "parameters": [DEADLINE],
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference(body.__name__)}}},
        "responses": {
            "200": {"description": description, "content": content, "headers": {IGNORED: _IGNORED_HEADER}},
        },
    }


_EITHER = "Answer, whole or as events"
COMPLETION = _documented(
    _COMPLETION_REQUEST, reference("Completion"), "CompletionEventData", description=_EITHER, end=_DONE
)
CHAT = _documented(_CHAT_REQUEST, reference("ChatCompletion"), "ChatEventData", description=_EITHER, end=_DONE)
RESPONSES = _documented(_RESPONSE_REQUEST, reference("ResponseObject"), "ResponseEventData", description=_EITHER)
MESSAGES = _documented(_MESSAGE_REQUEST, reference("Message"), "MessageEventData", description=_EITHER)
COUNT_TOKENS = _documented(_COUNT_REQUEST, reference("TokenCount"))
TOKENIZE = _documented(_TOKENIZE_REQUEST, reference("Tokens"))
DETOKENIZE = _documented(_DETOKENIZE_REQUEST, reference("DetokenizedText"))
GENERATE = _documented(LoraxRequest, reference("LoraxAnswer"))
GENERATE_STREAM = _documented(LoraxRequest, None, "LoraxEventData", description="One event for each token")
COMPAT_GENERATE = _documented(
    LoraxRequest,
    {"type": "array", "items": reference("LoraxAnswer"), "minItems": 1, "maxItems": 1},
    "LoraxEventData",
    description=_EITHER,
)

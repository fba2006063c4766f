"""JSON schemas of OpenAI's completions and chats, and of the tokenizer's routes, for the OpenAPI document.

The routes check bodies with :mod:`app.services.bodies` and send answers as the engine builds them. These models only
describe both. Objects of a request have no list of allowed keys, because other keys are ignored.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.openapi_components import Absent
from app.api.schemas import ErrorResponse


class FunctionDefinition(BaseModel):
    name: str = Field(description="1 to 64 characters of A-Z, a-z, 0-9, _ and -")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments")
    strict: bool | None = None


class ChatTool(BaseModel):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(BaseModel):
    name: str


class ChatToolChoice(BaseModel):
    """The function to call."""

    type: Literal["function"]
    function: FunctionName


class ToolCallFunction(BaseModel):
    name: str
    arguments: str = Field(description="Arguments as a JSON object in a string")


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: ToolCallFunction


class ChatTextPart(BaseModel):
    type: Literal["text", "input_text", "output_text"]
    text: str


class ChatRefusalPart(BaseModel):
    type: Literal["refusal"]
    refusal: str


class ChatThinkingPart(BaseModel):
    type: Literal["thinking"]
    thinking: str


ChatPart = ChatTextPart | ChatRefusalPart | ChatThinkingPart


class ChatMessage(BaseModel):
    """A message of the conversation. Other keys are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ChatPart] | None = Field(
        None, description="Text, or text parts. The base reads text only. An assistant's message may have none."
    )
    name: str | None = None
    tool_calls: list[ToolCall] | None = Field(None, description="Calls of an assistant's message")
    tool_call_id: str | None = Field(None, description="Id of the call that a tool's message answers")


class JsonSchema(BaseModel):
    """A JSON schema that the answer must match."""

    name: str = Field(description="1 to 64 characters of A-Z, a-z, 0-9, _ and -")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class PlainFormat(BaseModel):
    type: Literal["text", "json_object"]


class JsonSchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = PlainFormat | JsonSchemaFormat


class StructuredOutputs(BaseModel):
    """Exactly one of `json`, `regex`, `choice` and `json_object`, and two switches."""

    model_config = ConfigDict(extra="forbid")

    json_: dict[str, Any] | str | None = Field(None, alias="json", description="JSON schema")
    regex: str | None = None
    choice: list[str] | None = Field(None, description="The answer is one of these texts")
    json_object: Literal[True] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = Field(None, description="Send the usage in a last event")
    continuous_usage_stats: bool | None = Field(None, description="Send the usage in every event")
    include_obfuscation: Any = Field(None, description="Ignored")


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogprob(BaseModel):
    token: str
    logprob: float | None
    bytes: list[int] | Absent = None


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob] | None


class ChatCompletionMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCall] | Absent = None


class ChatChoice(BaseModel):
    index: int
    message: ChatCompletionMessage
    finish_reason: str | None = Field(description="`stop`, `length` or `tool_calls`")
    logprobs: ChatLogprobs | None
    stop_reason: int | str | Absent = Field(None, description="Stop string or token id that ended the answer")
    token_ids: list[int] | Absent = Field(None, description="Tokens of the answer, with `return_token_ids`")


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Unix time in seconds")
    model: str = Field(description="Name of the model, as in the request")
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str | Absent = None
    prompt_token_ids: list[int] | Absent = Field(None, description="Tokens of the prompt, with `return_token_ids`")


class ToolCallFunctionDelta(BaseModel):
    name: str | Absent = None
    arguments: str | Absent = None


class ToolCallDelta(BaseModel):
    """Part of a tool call. Parts with the same index belong together."""

    index: int
    id: str | Absent = None
    type: Literal["function"] | Absent = None
    function: ToolCallFunctionDelta | Absent = None


class ChatDelta(BaseModel):
    role: Literal["assistant"] | Absent = None
    content: str | Absent | None = None
    tool_calls: list[ToolCallDelta] | Absent = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | Absent = None
    token_ids: list[int] | Absent = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed chat. The event with the usage has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | Absent = None
    system_fingerprint: str | Absent = None
    prompt_token_ids: list[int] | Absent = None


class CompletionLogprobs(BaseModel):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float | None] | None]


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: str | None = Field(description="`stop` or `length`")
    logprobs: CompletionLogprobs | None
    stop_reason: int | str | Absent = Field(None, description="Stop string or token id that ended the text")
    token_ids: list[int] | Absent = Field(None, description="Tokens of the text, with `return_token_ids`")
    prompt_token_ids: list[int] | Absent = Field(None, description="Tokens of the prompt, with `return_token_ids`")


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time in seconds")
    model: str = Field(description="Name of the model, as in the request")
    choices: list[CompletionChoice] = Field(description="`n` texts for each prompt")
    usage: CompletionUsage
    system_fingerprint: str | Absent = None


class CompletionChunkChoice(BaseModel):
    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None
    stop_reason: int | str | Absent = None
    token_ids: list[int] | Absent = None
    prompt_token_ids: list[int] | Absent = None


class CompletionChunk(BaseModel):
    """One event of a streamed completion. The event with the usage has no choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | Absent = None
    system_fingerprint: str | Absent = None


class Tokens(BaseModel):
    count: int
    max_model_len: int = Field(description="Maximum number of tokens of a prompt and its answer")
    tokens: list[int]
    token_strs: list[str] | Absent = Field(None, description="Text of each token, with `return_token_strs`")


class DetokenizedText(BaseModel):
    prompt: str = Field(description="Text of the tokens")


#: Data of one event, by the API of the route. An error ends the stream.
ChatEventData = ChatCompletionChunk | ErrorResponse
CompletionEventData = CompletionChunk | ErrorResponse

"""JSON schemas of Anthropic's Messages for the OpenAPI document, see :mod:`app.api.openai_schemas`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.openapi_components import Absent
from app.api.schemas import AnthropicErrorResponse

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class ToolUseBlock(BaseModel):
    """A call of a tool by the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(BaseModel):
    """The result of a call, in a turn of the user."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(BaseModel):
    """Ignored."""

    type: Literal["thinking", "redacted_thinking"]


class MessageTurn(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock]


class MessageTool(BaseModel):
    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON schema of the arguments")
    strict: bool | None = None


class MessageToolChoice(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = Field(None, description="Tool to call; required for `tool`")
    disable_parallel_tool_use: bool | None = None


class MessageFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class MessageOutputConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: MessageFormat | None = None
    effort: Any = Field(None, description="Ignored")


class ContextEdit(BaseModel):
    type: str = Field(pattern="^clear_thinking_")


class ContextManagement(BaseModel):
    model_config = ConfigDict(extra="forbid")

    edits: list[ContextEdit] | None = None


class MessageUsage(BaseModel):
    input_tokens: int = Field(description="Prompt tokens that were not in the engine's cache")
    cache_creation_input_tokens: int
    cache_read_input_tokens: int = Field(description="Prompt tokens from the engine's cache")
    output_tokens: int


class Message(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="Name of the model, as in the request")
    content: list[TextBlock | ToolUseBlock]
    stop_reason: StopReason | None = Field(description="Null only at the beginning of a stream")
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    input_tokens: int


class MessageStartEvent(BaseModel):
    type: Literal["message_start"]
    message: Message


class ContentBlockStartEvent(BaseModel):
    type: Literal["content_block_start"]
    index: int
    content_block: TextBlock | ToolUseBlock


class BlockDelta(BaseModel):
    type: Literal["text_delta", "input_json_delta"]
    text: str | Absent = Field(None, description="More of a text")
    partial_json: str | Absent = Field(None, description="More of a call's arguments")


class ContentBlockDeltaEvent(BaseModel):
    type: Literal["content_block_delta"]
    index: int
    delta: BlockDelta


class ContentBlockStopEvent(BaseModel):
    type: Literal["content_block_stop"]
    index: int


class MessageEnd(BaseModel):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDeltaEvent(BaseModel):
    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStopEvent(BaseModel):
    type: Literal["message_stop"]


MessageEventData = (
    MessageStartEvent
    | ContentBlockStartEvent
    | ContentBlockDeltaEvent
    | ContentBlockStopEvent
    | MessageDeltaEvent
    | MessageStopEvent
    | AnthropicErrorResponse
)

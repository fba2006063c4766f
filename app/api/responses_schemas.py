"""JSON schemas of OpenAI's Responses for the OpenAPI document, see :mod:`app.api.openai_schemas`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.openai_schemas import PlainFormat

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponseInputPart(BaseModel):
    type: Literal["input_text", "output_text", "text"]
    text: str


class ResponseRefusalPart(BaseModel):
    type: Literal["refusal"]
    refusal: str


InputContent = str | list[ResponseInputPart | ResponseRefusalPart]


class ResponseInputMessage(BaseModel):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: InputContent


class ResponseFunctionCall(BaseModel):
    """A call that an earlier answer had."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="Arguments as a JSON object in a string")


class ResponseFunctionCallOutput(BaseModel):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: InputContent


class ResponseReasoning(BaseModel):
    """Ignored."""

    type: Literal["reasoning"]


InputItem = ResponseInputMessage | ResponseFunctionCall | ResponseFunctionCallOutput | ResponseReasoning


class ResponseTool(BaseModel):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments")
    strict: bool | None = None


class ResponseToolChoice(BaseModel):
    """The function to call."""

    type: Literal["function"]
    name: str


class ResponseJsonSchemaFormat(BaseModel):
    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseTextOptions(BaseModel):
    format: PlainFormat | ResponseJsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_obfuscation: bool | None = Field(None, description="Ignored")


class ResponseTopLogprob(BaseModel):
    token: str
    bytes: list[int]
    logprob: float | None


class ResponseLogprob(ResponseTopLogprob):
    top_logprobs: list[ResponseTopLogprob]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]] = Field(description="Always empty")
    logprobs: list[ResponseLogprob]


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputFunctionCall(BaseModel):
    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str = Field(description="Arguments as a JSON object in a string")


OutputItem = OutputMessage | OutputFunctionCall


class ResponseIncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseError(BaseModel):
    code: str
    message: str


class ResponseInputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class ResponseOutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: ResponseInputTokensDetails
    output_tokens: int
    output_tokens_details: ResponseOutputTokensDetails
    total_tokens: int


class ResponseObject(BaseModel):
    """An answer. From `background` on, fields repeat the request, or are OpenAI's and never filled here."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds")
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: ResponseIncompleteDetails | None
    model: str = Field(description="Name of the model, as in the request")
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: Literal[False]
    conversation: None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    user: str | None
    max_tool_calls: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt: None
    reasoning: None
    service_tier: None
    store: Literal[False]
    text: ResponseTextOptions
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int
    truncation: Literal["disabled"]


class _Event(BaseModel):
    sequence_number: int


class ResponseStateEvent(_Event):
    """Begin and end of an answer, with the answer so far."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseObject


class ResponseItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class ResponsePartEvent(_Event):
    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: OutputText


class ResponseTextDeltaEvent(_Event):
    type: Literal["response.output_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[ResponseLogprob]


class ResponseTextDoneEvent(_Event):
    type: Literal["response.output_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[ResponseLogprob]


class ResponseArgumentsDeltaEvent(_Event):
    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class ResponseArgumentsDoneEvent(_Event):
    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    arguments: str
    name: str


class ResponseErrorEvent(_Event):
    """An error in the middle of a stream. `response.failed` follows."""

    type: Literal["error"]
    code: str | None
    message: str | None
    param: str | None


ResponseEventData = (
    ResponseStateEvent
    | ResponseItemEvent
    | ResponsePartEvent
    | ResponseTextDeltaEvent
    | ResponseTextDoneEvent
    | ResponseArgumentsDeltaEvent
    | ResponseArgumentsDoneEvent
    | ResponseErrorEvent
)

"""JSON schemas of LoRAX's answers for the OpenAPI document, see :mod:`app.api.openai_schemas`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.openapi_components import Absent
from app.api.schemas import LoraxErrorResponse

FinishReason = Literal["length", "eos_token", "stop_sequence"]


class LoraxResponseFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="JSON schema that the text must match")


class LoraxPromptToken(BaseModel):
    id: int
    text: str
    logprob: float | None = Field(description="Null for the first token")


class LoraxAlternativeToken(BaseModel):
    id: int
    text: str
    logprob: float | None


class LoraxToken(BaseModel):
    id: int
    text: str
    logprob: float | None
    special: bool = Field(description="Whether the token is no part of the text")
    alternative_tokens: list[LoraxAlternativeToken] | Absent = Field(
        None, description="Most likely tokens, with `return_k_alternatives`"
    )


class LoraxSequenceDetails(BaseModel):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[LoraxPromptToken] = Field(description="Tokens of the prompt, with `decoder_input_details`")
    tokens: list[LoraxToken]


class LoraxBestOfSequence(LoraxSequenceDetails):
    generated_text: str


class LoraxDetails(LoraxSequenceDetails):
    prompt_tokens: int
    best_of_sequences: list[LoraxBestOfSequence] | Absent = Field(None, description="The other texts, with `best_of`")


class LoraxAnswer(BaseModel):
    generated_text: str
    details: LoraxDetails | Absent = Field(None, description="Only if the request has `details`")


class LoraxStreamDetails(BaseModel):
    finish_reason: FinishReason
    prompt_tokens: int
    generated_tokens: int
    seed: int | None


class LoraxTokenEvent(BaseModel):
    """One token of a stream. The last event has the whole text."""

    token: LoraxToken
    generated_text: str | None
    details: LoraxStreamDetails | None


LoraxEventData = LoraxTokenEvent | LoraxErrorResponse

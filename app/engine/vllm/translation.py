"""Translation of requests into vLLM's form, and of vLLM's errors into Tenora's."""

from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from app.domain.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, TenoraError
from app.engine.port import Endpoint, EngineRequest

#: Chat template that passes a rendered prompt through unchanged.
AS_IT_IS = "{{ prompt }}"
#: vLLM's message for a request whose grammar the compiler gave up. Here, no other request gets this message.
GENERATION_FAILED = "Internal server error"
#: vLLM's parameter names in errors about prompts that are too long to be read.
_TOO_LONG = frozenset({"input_text", "input_tokens"})
_MESSAGE_CHARS = 500
_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class VllmRequest:
    """Request in the form that vLLM gets.

    Attributes:
        engine_name: model name for vLLM.
        public_name: model name for the client.
        prompt_field: request field that holds the prompt.
        form: request field that constrains the form of the answer, or None.
        greedy: whether the base decodes greedily if a request sets no temperature.
    """

    engine_name: str
    public_name: str
    prompt_field: str
    form: str | None = None
    greedy: bool = False

    @classmethod
    def of(cls, request: EngineRequest, engine_name: str, *, greedy: bool = False) -> Self:
        prompt_field = "messages" if request.endpoint is Endpoint.CHAT else "prompt"
        return cls(engine_name, request.model, prompt_field, _form(request.body), greedy)

    def body(self, request: EngineRequest) -> dict[str, Any]:
        """Build vLLM's request: the client's fields, overridden by those that only the server sets."""
        server_fields: dict[str, Any] = {
            "model": self.engine_name,
            "request_id": request.request_id,
            "cache_salt": request.cache_salt,
        }
        if request.prompt is not None:
            server_fields |= {"chat_template": AS_IT_IS, "chat_template_kwargs": {"prompt": request.prompt}}
        if request.token_ids is not None:
            server_fields |= _tokenized(request, request.token_ids)
        if self.greedy and request.body.get("n", 1) > 1 and "temperature" not in request.body:
            server_fields["temperature"] = 1.0  # several answers need sampling; 1.0 is OpenAI's default
        return request.body | server_fields

    def text(self, message: str) -> str:
        """Shorten a message of vLLM, and replace the engine's model name by the public one."""
        return message.replace(self.engine_name, self.public_name)[:_MESSAGE_CHARS]

    def error(self, body: dict[str, Any]) -> TenoraError:
        """Translate vLLM's error body. Client errors keep vLLM's message, server errors do not."""
        if 400 <= int(body.get("code") or 500) < 500:
            return self.refused(str(body.get("message", "")), body.get("param"))
        return self.failed() if body.get("message") == GENERATION_FAILED else stopped()

    def refused(self, message: str, param: str | None) -> ContextLengthExceeded | InvalidRequest:
        """Build the error of an invalid request from vLLM's message.

        Args:
            param: vLLM's name of the field.
        """
        # The rest is vLLM's internal parameter name and the value.
        words = message.partition(" (parameter=")[0]
        return self.too_long(words) if param in _TOO_LONG else InvalidRequest(self.text(words), param=param)

    def too_long(self, message: str) -> ContextLengthExceeded:
        """Build the error of a prompt that leaves no room for an answer."""
        return ContextLengthExceeded(self.text(message), param=self.prompt_field)

    def failed(self) -> TenoraError:
        """Build the error of an answer that the engine gave up alone: its grammar exceeds the compiler's limits."""
        if self.form is None:
            return stopped()
        return InvalidRequest(
            f"{self.form} has more parts than the grammar compiler can keep. Send a simpler one.",
            param=self.form,
        )


def stopped() -> EngineUnavailable:
    return EngineUnavailable("The engine stopped while it answered. Try again later.", retry_after=_RETRY_AFTER_S)


def from_validation(error: ValidationError) -> InvalidRequest:
    """Translate the first error of vLLM's request model, with the name of its field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"] if isinstance(part, str | int))
    return InvalidRequest(f"{field or 'body'}: {first['msg']}"[:_MESSAGE_CHARS], param=field or None)


def _tokenized(request: EngineRequest, token_ids: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """Return the fields by which vLLM takes tokens instead of text."""
    if request.endpoint is Endpoint.CHAT:
        # vLLM's way for a decoding server to take the tokens of a prefilling one. It removes the field.
        return {"kv_transfer_params": {"prompt_token_ids": list(token_ids[0])}}
    # The answer repeats the prompt's text, which special tokens would change. So vLLM tokenizes the text again.
    return {} if request.body.get("echo") else {"prompt": [list(ids) for ids in token_ids]}


def _form(body: dict[str, Any]) -> str | None:
    if "structured_outputs" in body:
        return "structured_outputs"
    if (body.get("response_format") or {}).get("type", "text") != "text":
        return "response_format"
    return "tools" if body.get("tools") else None

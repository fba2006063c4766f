"""Requests in vLLM's words, and what it says of them in ours."""

from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from app.domain.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, TenoraError
from app.engine.port import Endpoint, EngineRequest

#: A chat template for prompts that are rendered already.
AS_IT_IS = "{{ prompt }}"
#: What vLLM says of a request whose grammar its compiler gave up, and of no other that there is here.
GENERATION_FAILED = "Internal server error"
#: What vLLM calls a prompt that is too long to be read.
_TOO_LONG = frozenset({"input_text", "input_tokens"})
_MESSAGE_CHARS = 500
_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as vLLM is asked it.

    Attributes:
        engine_name, public_name: its model's, for vLLM and for its client.
        prompt_field: the field of the request that holds the prompt.
        form: the field that says which form the answer must have; None if none does.
        greedy: whether the base decodes greedily where a request names no temperature.
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
        """vLLM's request: what the client asks for, under what only the server sets."""
        own: dict[str, Any] = {
            "model": self.engine_name,
            "request_id": request.request_id,
            "cache_salt": request.cache_salt,
        }
        if request.prompt is not None:
            own |= {"chat_template": AS_IT_IS, "chat_template_kwargs": {"prompt": request.prompt}}
        if self.greedy and request.body.get("n", 1) > 1 and "temperature" not in request.body:
            own["temperature"] = 1.0  # several answers need sampling; OpenAI's default
        return request.body | own

    def text(self, message: str) -> str:
        """What vLLM says, with the name that the client knows."""
        return message.replace(self.engine_name, self.public_name)[:_MESSAGE_CHARS]

    def error(self, body: dict[str, Any]) -> TenoraError:
        """vLLM's error body as ours: what the client did wrong keeps its words, what went wrong here does not."""
        if 400 <= int(body.get("code") or 500) < 500:
            return self.refused(str(body.get("message", "")), body.get("param"))
        return self.failed() if body.get("message") == GENERATION_FAILED else stopped()

    def refused(self, message: str, param: str | None) -> ContextLengthExceeded | InvalidRequest:
        """What the client did wrong, in vLLM's words.

        Args:
            param: vLLM's name of the field.
        """
        if param in _TOO_LONG:
            # The rest is vLLM's internal name and the value.
            return self.too_long(message.partition(" (parameter=")[0])
        return InvalidRequest(self.text(message), param=param)

    def too_long(self, message: str) -> ContextLengthExceeded:
        """The prompt leaves no room for an answer."""
        return ContextLengthExceeded(self.text(message), param=self.prompt_field)

    def failed(self) -> TenoraError:
        """The engine gave up this answer alone: its grammar went beyond what the compiler may use."""
        if self.form is None:
            return stopped()
        return InvalidRequest(
            f"{self.form}: found a form of more parts than the grammar compiler can keep, allowed a simpler one",
            param=self.form,
        )


def stopped() -> EngineUnavailable:
    return EngineUnavailable("the engine stopped while it answered", retry_after=_RETRY_AFTER_S)


def from_validation(error: ValidationError) -> InvalidRequest:
    """The first thing that vLLM's own request model refuses, named."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"] if isinstance(part, str | int))
    return InvalidRequest(f"{field or 'body'}: {first['msg']}"[:_MESSAGE_CHARS], param=field or None)


def _form(body: dict[str, Any]) -> str | None:
    if "structured_outputs" in body:
        return "structured_outputs"
    if (body.get("response_format") or {}).get("type", "text") != "text":
        return "response_format"
    return "tools" if body.get("tools") else None

"""Bodies that passed the checks of their route: OpenAI's, those that are translated to chats, and LoRAX's."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.domain.access import Caller
from app.domain.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, TenoraError, UnsupportedField
from app.engine.port import Endpoint, EngineCall
from app.services.bodies import lorax, lorax_answers
from app.services.bodies.openai import chat_body, completion_body, ignored
from app.services.bodies.translated_events import ABORTED, AnswerFacts, TranslatedEvents, TranslatedRequest
from app.services.prompts.defaults import apply_defaults, lorax_generation
from app.services.prompts.tokens import PromptTokens
from app.services.serving.served import Served
from app.services.serving.targets import Resolver, Target
from app.settings import LimitSettings, Settings

_CHECKS = {Endpoint.COMPLETIONS: completion_body, Endpoint.CHAT: chat_body}

#: Translates the body of another API to a chat, after checking it.
Translation = Callable[[dict[str, Any], LimitSettings], TranslatedRequest]


@dataclass(frozen=True, slots=True)
class EngineBody:
    """Body for the engine, with the version's defaults.

    Attributes:
        in_own_format: translates the answer to the format of the route.
    """

    fields: dict[str, Any]
    in_own_format: Callable[[Served, EngineCall], Served]


class CheckedBody(Protocol):
    """A body that passed the checks of its route.

    Attributes:
        endpoint: schema of the engine's body.
        sent: the body as a canary's verdict reads it, without the version's defaults.
        ignored: names of ignored fields, possibly repeated.
    """

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def sent(self) -> Mapping[str, Any]: ...

    @property
    def ignored(self) -> Iterable[str]: ...

    async def target(self, caller: Caller, resolver: Resolver) -> Target:
        """Resolve the model that the body names.

        Raises: as :meth:`app.services.serving.targets.Targets.named`.
        """

    def filled(self, target: Target) -> EngineBody:
        """Fill the fields that the body omits with the version's defaults."""

    def renamed(self, error: TenoraError) -> TenoraError:
        """Return an error of the chat or the engine with the field names of the route."""


class BodyChecks:
    """Checks of the routes' bodies.

    Raises (every method):
        InvalidRequest, UnsupportedField
    """

    def __init__(self, settings: Settings, tokens: PromptTokens) -> None:
        self._limits, self._head, self._tokens = settings.limits, settings.engine.lora_head, tokens
        self._default_tokens = min(settings.limits.max_new_tokens, tokens.context)

    def openai(self, endpoint: Endpoint, body: dict[str, Any]) -> CheckedBody:
        """Check a body of ``/v1/completions`` or ``/v1/chat/completions``."""
        checked = _CHECKS[endpoint](body, self._limits)
        if checked.get("echo") and checked.get("logprobs") is not None:
            self._check_prompt_logprobs("echo")
        return _OpenaiBody(endpoint, body, checked, self._tokens.context)

    def translated(self, body: dict[str, Any], translation: Translation) -> CheckedBody:
        """Check a body of an API that is translated to a chat."""
        return _TranslatedBody(body, translation(body, self._limits), self._tokens.context)

    def lorax(self, body: dict[str, Any], *, stream: bool | None) -> CheckedBody:
        """Check a LoRAX body.

        Args:
            stream: whether to answer with events; None: the body decides.
        """
        generation = lorax.generation(body, self._limits, default_tokens=self._default_tokens, stream=stream)
        if generation.prefill:
            self._check_prompt_logprobs("parameters.decoder_input_details")

        def with_defaults(defaults: Mapping[str, Any]) -> lorax.Generation:
            return lorax_generation(
                body,
                defaults,
                self._limits,
                default_tokens=self._default_tokens,
                stream=stream,
                longest=self._tokens.context,
            )

        return _LoraxBody(body, generation, with_defaults, self._tokens)

    def _check_prompt_logprobs(self, field: str) -> None:
        """Refuse logprobs of the prompt on a server with adapters of the head.

        vLLM computes them for more rows than it has adapter indices for.
        """
        if self._head:
            raise UnsupportedField(
                f"{field} asks for logprobs of the prompt, which this server does not have: it serves adapters of "
                "lm_head (TENORA_ENGINE__LORA_HEAD). Ask for logprobs of the answer only.",
                param=field,
            )


class _OpenaiBody:
    def __init__(self, endpoint: Endpoint, body: dict[str, Any], checked: dict[str, Any], context: int) -> None:
        self.endpoint, self.sent, self._checked, self._context = endpoint, body, checked, context

    @property
    def ignored(self) -> Iterable[str]:
        return ignored(self.sent)

    async def target(self, caller: Caller, resolver: Resolver) -> Target:
        return await resolver.of_body(caller, self.sent)

    def filled(self, target: Target) -> EngineBody:
        fields = apply_defaults(self.endpoint, self._checked, target.defaults, longest=self._context)
        return EngineBody(fields, lambda served, _: served)

    def renamed(self, error: TenoraError) -> TenoraError:
        return error


class _TranslatedBody:
    endpoint = Endpoint.CHAT

    def __init__(self, body: dict[str, Any], translated: TranslatedRequest, context: int) -> None:
        self._body, self._translated, self._context = body, translated, context
        self.sent, self.ignored = translated.chat, translated.ignored

    async def target(self, caller: Caller, resolver: Resolver) -> Target:
        return await resolver.of_body(caller, self._body)

    def filled(self, target: Target) -> EngineBody:
        fields = apply_defaults(Endpoint.CHAT, self._translated.chat, target.defaults, longest=self._context)
        return EngineBody(fields, self._in_own_format)

    def renamed(self, error: TenoraError) -> TenoraError:
        return self._translated.renaming.error(error)

    def _in_own_format(self, served: Served, call: EngineCall) -> Served:
        """Translate a chat's answer.

        Raises:
            EngineUnavailable: the engine stopped before the answer was complete.
        """
        request = call.request
        prompt_tokens = None if request.token_ids is None else sum(map(len, request.token_ids))
        created = int(time.time())
        facts = AnswerFacts(request.request_id, request.model, created, prompt_tokens, lambda: call.outcome.usage)
        answer = served.answer
        if not isinstance(answer, dict):
            events = TranslatedEvents(answer, self._translated.writer(facts), self._translated.renaming)
            return replace(served, answer=events, last_event=events.last_event)
        if answer["choices"][0].get("finish_reason") in ABORTED:
            raise EngineUnavailable("The engine stopped while it answered. Try again later.", retry_after=1)
        return replace(served, answer=self._translated.whole(answer, facts))


class _LoraxBody:
    endpoint = Endpoint.COMPLETIONS

    def __init__(
        self,
        body: dict[str, Any],
        generation: lorax.Generation,
        with_defaults: Callable[[Mapping[str, Any]], lorax.Generation],
        tokens: PromptTokens,
    ) -> None:
        self.sent, self._generation, self._with_defaults, self._tokens = body, generation, with_defaults, tokens

    @property
    def ignored(self) -> Iterable[str]:
        return lorax.ignored(dict(self.sent))

    async def target(self, caller: Caller, resolver: Resolver) -> Target:
        return await resolver.named(caller, self._generation.adapter_id)

    def filled(self, target: Target) -> EngineBody:
        generation = self._with_defaults(target.defaults) if target.defaults else self._generation

        def in_own_format(served: Served, _: EngineCall) -> Served:
            answer, special, texts = served.answer, self._tokens.special_ids, self._tokens.texts
            if isinstance(answer, dict):
                return replace(served, answer=lorax_answers.whole(generation, answer, special=special, texts=texts))
            return replace(served, answer=lorax_answers.LoraxEvents(generation, answer, special=special, texts=texts))

        return EngineBody(generation.body, in_own_format)

    def renamed(self, error: TenoraError) -> TenoraError:
        return lorax.in_lorax_words(error) if isinstance(error, ContextLengthExceeded | InvalidRequest) else error

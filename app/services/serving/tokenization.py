"""Tokenization service: prompts as tokens, and tokens as text, with the chat template of the named version."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from app.domain.access import Caller
from app.domain.errors import InvalidRequest, TenoraError
from app.engine.port import Endpoint
from app.services.bodies.anthropic import count_request
from app.services.bodies.field_table import DETOKENIZE, TOKENIZE
from app.services.bodies.openai import chat_body
from app.services.bodies.openai import ignored as ignored_in_chat
from app.services.catalog.adapters import AdapterService
from app.services.limits.service import LimitService
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.defaults import apply_defaults
from app.services.prompts.tokens import PromptTokens
from app.services.serving.models import tenant_of
from app.services.serving.served import Served
from app.services.serving.targets import Target, Targets
from app.settings import LimitSettings

Result = TypeVar("Result")


class TokenizationService:
    """Use cases that need the tokenizer but no engine. They count against limits of requests only.

    Raises:
        NotFound, Forbidden, AdapterQuarantined, RegistryUnavailable: by every method, for the named model.
        LimitExceeded: by every method.
        InvalidRequest, UnsupportedField: by every method; also if the gateway cannot load the base's tokenizer.
        Busy: by every method; too many long texts are waiting.
    """

    def __init__(
        self,
        adapters: AdapterService,
        prompts: ChatPrompts,
        tokens: PromptTokens,
        limiting: LimitService,
        limits: LimitSettings,
        *,
        base_name: str,
    ) -> None:
        self._targets, self._prompts, self._tokens = Targets(adapters, base_name=base_name), prompts, tokens
        self._limiting, self._limits = limiting, limits

    async def tokenize(self, caller: Caller, request_id: str, body: dict[str, Any]) -> Served:
        """Return the tokens of a text, or of a conversation as the named version's chat renders it.

        The answer is vLLM's: ``{"count", "max_model_len", "tokens", "token_strs"?}``.
        """
        sent = TOKENIZE.checked(body, self._limits)
        _check_prompt(sent)
        sent_chat: dict[str, Any] = {name: body[name] for name in ("messages", "tools") if name in sent}
        chat = chat_body(sent_chat, self._limits) if "messages" in sent else None

        async def answer(target: Target) -> dict[str, Any]:
            _, tenant = tenant_of(caller)
            if chat is not None:
                ids = await self._of_chat(caller, chat, target)
            else:
                special = sent.get("add_special_tokens", True)
                ids = await self._tokens.encode(sent["prompt"], special=special, tenant=tenant)
            answer: dict[str, Any] = {"count": len(ids), "max_model_len": self._tokens.context, "tokens": list(ids)}
            if sent.get("return_token_strs"):
                answer["token_strs"] = await self._tokens.text_of_each(ids, tenant=tenant)
            return answer

        return await self._counted(caller, request_id, body, answer, ignored=tuple(ignored_in_chat(sent_chat)))

    async def detokenize(self, caller: Caller, request_id: str, body: dict[str, Any]) -> Served:
        """Return the text of tokens, as ``{"prompt"}``."""
        sent = DETOKENIZE.checked(body, self._limits)

        async def answer(_: Target) -> dict[str, Any]:
            return {"prompt": await self._tokens.decode(sent["tokens"], tenant=tenant_of(caller)[1])}

        return await self._counted(caller, request_id, body, answer)

    async def count_message_tokens(self, caller: Caller, request_id: str, body: dict[str, Any]) -> Served:
        """Return the number of tokens of the prompt of a body of Anthropic's Messages, as ``{"input_tokens"}``."""
        counted = count_request(body, self._limits)

        async def answer(target: Target) -> dict[str, Any]:
            try:
                return {"input_tokens": len(await self._of_chat(caller, counted.chat, target))}
            except TenoraError as error:
                raise counted.renaming.error(error) from None

        return await self._counted(caller, request_id, body, answer, ignored=counted.ignored)

    async def _of_chat(self, caller: Caller, chat: dict[str, Any], target: Target) -> tuple[int, ...]:
        _, slug = tenant_of(caller)
        filled = apply_defaults(Endpoint.CHAT, chat, target.defaults, longest=self._tokens.context)
        text = await self._prompts.render(filled, target.defaults, owner=slug)
        return await self._tokens.encode(text, special=False, tenant=slug)

    async def _counted(
        self,
        caller: Caller,
        request_id: str,
        body: dict[str, Any],
        answer: Callable[[Target], Awaitable[dict[str, Any]]],
        *,
        ignored: tuple[str, ...] = (),
    ) -> Served:
        target = await self._targets.of_body(caller, body)
        self._limiting.refuse(caller, target.resolved)
        async with self._limiting.without_tokens(caller, request_id, target.resolved) as rate_limits:
            return Served(await answer(target), target.version, rate_limits=rate_limits, ignored=ignored)


def _check_prompt(sent: dict[str, Any]) -> None:
    if ("prompt" in sent) == ("messages" in sent):
        raise InvalidRequest("Send either prompt or messages.", param="prompt")
    for name, other in (("tools", "messages"), ("add_special_tokens", "prompt")):
        if name in sent and other not in sent:
            raise InvalidRequest(f"{name} is allowed only together with {other}.", param=name)

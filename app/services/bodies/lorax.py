"""LoRAX's requests as OpenAI completions.

The shape is that of LoRAX's ``router/src/lib.rs`` (``CompatGenerateRequest``), the meaning that of its
``router/src/validation.rs`` and ``server/lorax_server/utils/tokens.py``. Two things that surprise: sampling
is off unless ``do_sample`` or a parameter that only sampling has asks for it, and a stop string stays in the text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.errors import ContextLengthExceeded, InvalidRequest, TenoraError, UnsupportedField
from app.services.bodies import field_checks, structured
from app.services.bodies.field_checks import Check, boolean, fields, integer, integer_up_to, number, one_of, refuse
from app.services.bodies.openai import MAX_TOKENS
from app.settings import LimitSettings


@dataclass(frozen=True, slots=True)
class Generation:
    """A LoRAX request, translated.

    Attributes:
        body: of ``/v1/completions``, for the engine.
        adapter_id: the model asked for; None for the base.
        stream: whether the answer is a stream of events.
        prefix: what to put before the generated text: the prompt with ``return_full_text``.
        details: whether the answer carries details.
        prefill: whether the details list the prompt's tokens.
        alternatives: alternative tokens to list per position.
        seed: the seed that sampling was given, if it was.
    """

    body: dict[str, Any]
    adapter_id: str | None
    stream: bool
    prefix: str
    details: bool
    prefill: bool
    alternatives: int
    seed: int | None


def _response_format(value: Any, path: str, limits: LimitSettings) -> dict[str, Any]:
    """To vLLM's ``structured_outputs``."""
    given = fields(value, path, {"type", "schema"}, required=("type",))
    one_of("json_object")(given["type"], f"{path}.type", limits)
    if "schema" not in given:
        return {"json_object": True}
    return {"json": structured.schema(given["schema"], f"{path}.schema", limits)}


#: Could change the answer and is ignored all the same, the one exception to the rule: LangChain's client of this
#: protocol sends 0.95 with every request, whoever uses it.
IGNORED = frozenset({"typical_p"})

# lorax-client sends every parameter, most of them null; null counts as not sent. Not supported, so refused with
# any other value: merged_adapters, api_token and adapter sources but this server's own, watermark.
PARAMETERS: dict[str, Check] = {
    "adapter_id": lambda value, path, _: field_checks.text(value, path),
    "adapter_source": one_of("local"),
    "do_sample": boolean,
    "max_new_tokens": integer(1, MAX_TOKENS),
    "ignore_eos_token": boolean,
    "repetition_penalty": number(0.01, 100),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "return_full_text": boolean,
    "stop": field_checks.stop,
    "seed": integer(0, 2**63 - 1),
    "temperature": number(0, 2),
    "top_k": integer(1, MAX_TOKENS),
    "top_p": number(0, 1, above=True),
    "truncate": integer(1, MAX_TOKENS),
    "best_of": integer_up_to("n", 1),
    "watermark": one_of(False),
    "apply_chat_template": one_of(False),
    "details": boolean,
    "decoder_input_details": boolean,
    "return_k_alternatives": integer_up_to("logprobs", 1),
    "response_format": _response_format,
    **dict.fromkeys(IGNORED, field_checks.anything),
}

# Parameters whose value the completions body takes over as it is.
_RENAMED = {
    "ignore_eos_token": "ignore_eos",
    "repetition_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "response_format": "structured_outputs",
}

# Names that the engine's refusals speak of.
_ENGINE_NAMES = {"max_tokens": "max_new_tokens", "truncate_prompt_tokens": "truncate"}
# Of these too, but as a common word in the sentence.
_ENGINE_FIELDS = _ENGINE_NAMES | {"prompt": "inputs"}


def generation(body: dict[str, Any], limits: LimitSettings, *, default_tokens: int, stream: bool | None) -> Generation:
    """Check and translate a LoRAX request.

    Args:
        default_tokens: tokens to generate if the request does not say.
        stream: what the route does; None where the body's ``stream`` decides.

    Raises:
        InvalidRequest, UnsupportedField
    """
    inputs, parameters, streams = _checked(body, limits, stream)
    sampling = _sampling(parameters)
    _check_combination(parameters, streams, sampled=sampling["temperature"] > 0)
    prefill = parameters.get("decoder_input_details", False)
    details = parameters.get("details", False) or prefill
    alternatives = parameters.get("return_k_alternatives", 0) if details or streams else 0
    translated = {
        "prompt": inputs,
        "max_tokens": parameters.get("max_new_tokens", default_tokens),
        "stream": streams,
        **sampling,
        **{_RENAMED[name]: value for name, value in parameters.items() if name in _RENAMED},
        **_shape(parameters),
        **_reported(details or streams, alternatives, parameters.get("best_of", 1), prefill=prefill),
    }
    return Generation(
        body=translated,
        adapter_id=parameters.get("adapter_id"),
        stream=streams,
        prefix=inputs if parameters.get("return_full_text") else "",
        details=details,
        prefill=prefill,
        alternatives=alternatives,
        seed=sampling.get("seed"),
    )


def ignored(body: dict[str, Any]) -> Iterator[str]:
    """Names of what a body that passed :func:`generation` asks for in vain."""
    parameters = body.get("parameters") or {}
    return (f"parameters.{name}" for name in sorted(IGNORED) if parameters.get(name) is not None)


def in_lorax_words(error: ContextLengthExceeded | InvalidRequest) -> TenoraError:
    """The engine's refusal of a translated body, with the names that the caller knows."""
    message, param = error.message, error.param
    for engine_name, name in _ENGINE_NAMES.items():
        message = message.replace(engine_name, name)
    return type(error)(message, param=_ENGINE_FIELDS.get(param, param) if param else None)


def _checked(
    body: dict[str, Any], limits: LimitSettings, route_streams: bool | None
) -> tuple[str, dict[str, Any], bool]:
    for name, value in body.items():
        if value is not None and name not in ("inputs", "parameters", "stream"):
            raise UnsupportedField(f"{name[:80]}: this field is not supported", param=name[:80])
    inputs = field_checks.text(body.get("inputs"), "inputs")
    if not inputs:
        raise refuse("inputs", inputs, "text of at least one character")
    sent = body.get("parameters")
    given = fields({} if sent is None else sent, "parameters", PARAMETERS)
    parameters = {name: PARAMETERS[name](value, f"parameters.{name}", limits) for name, value in given.items()}
    streams = body.get("stream")
    if streams is None:
        streams = False
    boolean(streams, "stream", limits)
    # Where the route decides, LoRAX takes no notice of the field, and clients send it all the same.
    return inputs, parameters, streams if route_streams is None else route_streams


def _sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    temperature = parameters.get("temperature", 1.0)
    warped = temperature != 1 or "top_k" in parameters or parameters.get("top_p", 1) < 1
    if temperature == 0 or not (warped or parameters.get("do_sample")):
        return {"temperature": 0.0}
    names = ("top_k", "top_p", "seed")
    return {"temperature": temperature} | {name: parameters[name] for name in names if name in parameters}


def _shape(parameters: dict[str, Any]) -> dict[str, Any]:
    """Where the text stops, and how much of the prompt is read."""
    shape: dict[str, Any] = {}
    if parameters.get("stop"):
        shape |= {"stop": parameters["stop"], "include_stop_str_in_output": True}
    if "truncate" in parameters:
        shape |= {"truncate_prompt_tokens": parameters["truncate"], "truncation_side": "left"}
    return shape


def _reported(tokens: bool, alternatives: int, best_of: int, *, prefill: bool) -> dict[str, Any]:
    """What the engine must tell beside the text."""
    reported: dict[str, Any] = {}
    if tokens or best_of > 1:
        reported |= {"logprobs": alternatives, "return_token_ids": True}
    if alternatives:
        # A text does not tell which token it is, so tokens come as ids and their texts are looked up.
        reported["return_tokens_as_token_ids"] = True
    if best_of > 1:
        reported["n"] = best_of
    if prefill:
        reported["prompt_logprobs"] = 0
    return reported


def _check_combination(parameters: dict[str, Any], streams: bool, *, sampled: bool) -> None:
    if streams and parameters.get("decoder_input_details"):
        path = "parameters.decoder_input_details"
        raise InvalidRequest(f"{path}: allowed only without streaming", param=path)
    best_of = parameters.get("best_of", 1)
    if best_of > 1 and (streams or not sampled or "seed" in parameters):
        path = "parameters.best_of"
        raise InvalidRequest(
            f"{path}: found {best_of}, allowed above 1 only with sampling, without seed and streaming", param=path
        )

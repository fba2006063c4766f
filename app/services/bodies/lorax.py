"""LoRAX requests, translated to OpenAI completions.

The fields are those of LoRAX's ``router/src/lib.rs`` (``CompatGenerateRequest``). Their meaning follows its
``router/src/validation.rs`` and ``server/lorax_server/utils/tokens.py``. Two points may surprise:

- Sampling is off unless ``do_sample`` or a parameter that only sampling has turns it on.
- A stop string stays in the text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.errors import ContextLengthExceeded, InvalidRequest, TenoraError, UnsupportedField
from app.services.bodies import field_checks
from app.services.bodies.field_checks import boolean, fields, refuse
from app.services.bodies.field_table import LORAX
from app.settings import LimitSettings


@dataclass(frozen=True, slots=True)
class Generation:
    """A translated LoRAX request.

    Attributes:
        body: body of ``/v1/completions`` for the engine.
        adapter_id: requested model; None for the base.
        stream: whether the answer is a stream of events.
        prefix: text in front of the generated text: the prompt with ``return_full_text``.
        details: whether the answer carries details.
        prefill: whether the details list the prompt's tokens.
        alternatives: number of alternative tokens to list for each position.
        seed: seed of the sampling, if the request has one.
    """

    body: dict[str, Any]
    adapter_id: str | None
    stream: bool
    prefix: str
    details: bool
    prefill: bool
    alternatives: int
    seed: int | None


# Parameters whose value is copied unchanged into the completions body.
_RENAMED = {
    "ignore_eos_token": "ignore_eos",
    "repetition_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "response_format": "structured_outputs",
}

# Field names in the engine's refusals, with LoRAX's names for them.
_ENGINE_NAMES = {"max_tokens": "max_new_tokens", "truncate_prompt_tokens": "truncate"}
# Names that are common words too: these are renamed in an error's ``param``, but not in its message.
_ENGINE_FIELDS = _ENGINE_NAMES | {"prompt": "inputs"}


def generation(body: dict[str, Any], limits: LimitSettings, *, default_tokens: int, stream: bool | None) -> Generation:
    """Check and translate a LoRAX request.

    Args:
        default_tokens: number of tokens to generate if the request names none.
        stream: whether the route streams; None if the body's ``stream`` decides.

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
    """Return the names of the ignored fields in a body that passed :func:`generation`."""
    parameters = body.get("parameters") or {}
    return (f"parameters.{name}" for name in sorted(LORAX.ignored) if parameters.get(name) is not None)


def in_lorax_words(error: ContextLengthExceeded | InvalidRequest) -> TenoraError:
    """Translate field names in the engine's refusal to LoRAX's names."""
    message, param = error.message, error.param
    for engine_name, name in _ENGINE_NAMES.items():
        message = message.replace(engine_name, name)
    return type(error)(message, param=_ENGINE_FIELDS.get(param, param) if param else None)


def _checked(
    body: dict[str, Any], limits: LimitSettings, route_streams: bool | None
) -> tuple[str, dict[str, Any], bool]:
    for name, value in body.items():
        if value is not None and name not in ("inputs", "parameters", "stream"):
            raise UnsupportedField(f"The field {name[:80]} is not supported.", param=name[:80])
    inputs = field_checks.text(body.get("inputs"), "inputs")
    if not inputs:
        raise refuse("inputs", inputs, "a text of at least one character")
    raw = body.get("parameters")
    sent = fields({} if raw is None else raw, "parameters", LORAX.checks)
    parameters = {name: LORAX.checks[name](value, f"parameters.{name}", limits) for name, value in sent.items()}
    streams = body.get("stream")
    if streams is None:
        streams = False
    boolean(streams, "stream", limits)
    # Where the route decides, LoRAX ignores the field, and clients send it anyway.
    return inputs, parameters, streams if route_streams is None else route_streams


def _sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    temperature = parameters.get("temperature", 1.0)
    warped = temperature != 1 or "top_k" in parameters or parameters.get("top_p", 1) < 1
    if temperature == 0 or not (warped or parameters.get("do_sample")):
        return {"temperature": 0.0}
    names = ("top_k", "top_p", "seed")
    return {"temperature": temperature} | {name: parameters[name] for name in names if name in parameters}


def _shape(parameters: dict[str, Any]) -> dict[str, Any]:
    """Translate stop strings and the truncation of the prompt."""
    shape: dict[str, Any] = {}
    if parameters.get("stop"):
        shape |= {"stop": parameters["stop"], "include_stop_str_in_output": True}
    if "truncate" in parameters:
        shape |= {"truncate_prompt_tokens": parameters["truncate"], "truncation_side": "left"}
    return shape


def _reported(tokens: bool, alternatives: int, best_of: int, *, prefill: bool) -> dict[str, Any]:
    """Return the fields that make the engine report tokens, alternatives, several sequences or the prompt's tokens."""
    reported: dict[str, Any] = {}
    if tokens or best_of > 1:
        reported |= {"logprobs": alternatives, "return_token_ids": True}
    if alternatives:
        # A text does not identify its token. Request ids instead, and look up their texts.
        reported["return_tokens_as_token_ids"] = True
    if best_of > 1:
        reported["n"] = best_of
    if prefill:
        reported["prompt_logprobs"] = 0
    return reported


def _check_combination(parameters: dict[str, Any], streams: bool, *, sampled: bool) -> None:
    if streams and parameters.get("decoder_input_details"):
        path = "parameters.decoder_input_details"
        raise InvalidRequest(f"{path} is not available in a stream. Leave it out, or do not stream.", param=path)
    best_of = parameters.get("best_of", 1)
    if best_of > 1 and (streams or not sampled or "seed" in parameters):
        path = "parameters.best_of"
        raise InvalidRequest(
            f"{path} is {best_of}; a value above 1 needs sampling, no seed and no streaming.", param=path
        )

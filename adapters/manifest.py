"""Parse ``adapter_config.json``, as PEFT's LoraConfig writes it, into a typed manifest.

Every key is served, informational or refused (:mod:`adapters.peft_keys`). A refused key is allowed if its value is
null, false, 0 or empty, because PEFT writes it by default. The same rule holds for unknown keys, whose meaning cannot
be known.

The tensors decide which modules are adapted. vLLM ignores ``target_modules``, ``exclude_modules`` and
``layers_to_transform`` and applies the tensors that it finds. PEFT applies only the tensors that the config allows. A
tensor that the config leaves out is therefore refused. An entry of ``target_modules`` without tensors is a warning:
PEFT skips names that the base lacks, and a module without tensors computes the same as the base.

Regular expressions are kept as text: strings in ``target_modules`` and ``exclude_modules``, and all keys of
``rank_pattern`` and ``alpha_pattern``. They run only where :mod:`adapters.validation` limits their time.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from adapters.errors import AdapterRejected, Reason
from adapters.foreign import changed_base, foreign_config, other_architecture
from adapters.geometry import LINEAR_MODULES
from adapters.patterns import Pattern
from adapters.peft_keys import INFORMATIONAL, REFUSED, SERVED, SERVED_INITS, TRAINING_ONLY
from adapters.strict_json import parse_object, show, show_name

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20

#: PEFT's keyword for every linear layer except the head, case-insensitive.
ALL_LINEAR = "all-linear"

#: Text for a key that is neither PEFT's nor known to be harmless.
UNKNOWN_KEY = "not a key of PEFT's LoraConfig 0.21; remove it if it is only about training"

MAX_RANK = 2**15
MAX_ALPHA = 2**20

_NAME = re.compile(r"[\x20-\x7e]{1,128}", re.ASCII)
_NAME_WORDS = "1 to 128 printable ASCII characters"
_MAX_NAMES = 10_000
_MAX_LAYERS_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class Declared:
    """Settings that a manifest declares for one module.

    Attributes:
        scaling: factor applied to the product of the two matrices.
        targeted, excluded: whether ``target_modules`` and ``exclude_modules`` name it.
    """

    rank: int
    alpha: float
    scaling: float
    targeted: bool
    excluded: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """Parsed ``adapter_config.json``.

    Module names are those of the base, for example ``model.layers.0.self_attn.q_proj``.

    Attributes:
        rank, alpha: defaults for modules that no pattern matches.
        rslora: whether the scaling is rank-stabilised.
        targets: full names or suffixes (``q_proj``) of adapted modules; None if ``target_pattern`` replaces them.
        target_pattern: regular expression for full names of adapted modules.
        excluded: full names or suffixes of modules that are not adapted.
        excluded_pattern: regular expression for full names of modules that are not adapted.
        layers: indices of the only adapted layers; None for all layers.
        rank_patterns, alpha_patterns: (pattern, value) in file order; the first pattern that matches a module wins.
        trained_on: ``base_model_name_or_path``, shortened; empty if absent.
        ties_weights: whether PEFT also adapts the embedding if it shares its matrix with an adapted head.
    """

    rank: int
    alpha: float
    rslora: bool
    targets: frozenset[str] | None
    target_pattern: Pattern | None
    excluded: frozenset[str]
    excluded_pattern: Pattern | None
    layers: frozenset[int] | None
    rank_patterns: tuple[tuple[Pattern, int], ...]
    alpha_patterns: tuple[tuple[Pattern, float], ...]
    trained_on: str = field(default="", compare=False)
    ties_weights: bool = False

    @property
    def largest_rank(self) -> int:
        """Largest rank declared anywhere, even by a pattern that no module matches: vLLM compares it with its limit."""
        return max([self.rank, *(rank for _, rank in self.rank_patterns)])

    def rank_of(self, module: str) -> int:
        return next((rank for pattern, rank in self.rank_patterns if pattern.matches(module)), self.rank)

    def alpha_of(self, module: str) -> float:
        return next((alpha for pattern, alpha in self.alpha_patterns if pattern.matches(module)), self.alpha)

    def scaling_of(self, module: str) -> float:
        """Return the factor for the product of the two matrices: alpha/r, or alpha/sqrt(r) under rsLoRA."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.rslora else rank)

    def targets_of(self, module: str) -> frozenset[str]:
        """Return the entries of ``targets`` that name the module."""
        return frozenset(ends(module)) & (self.targets or frozenset())

    def declare(self, module: str) -> Declared:
        """Evaluate the manifest for one module. This runs the config's regular expressions.

        Raises:
            adapters.patterns.InvalidPattern: an expression does not compile.
        """
        targets, excluded = self.target_pattern, self.excluded_pattern
        return Declared(
            rank=self.rank_of(module),
            alpha=self.alpha_of(module),
            scaling=self.scaling_of(module),
            targeted=bool(self.targets_of(module)) if targets is None else targets.matches(module),
            excluded=not self.excluded.isdisjoint(ends(module)) if excluded is None else excluded.matches(module),
        )


def ends(module: str) -> list[str]:
    """Return the module's name and each of its dot-separated suffixes, which PEFT compares config names with."""
    parts = module.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def parse_manifest(raw: bytes) -> Manifest:
    """Parse the bytes of ``adapter_config.json``.

    Raises:
        AdapterRejected: the config is refused; carries every reason.
    """
    manifest, reasons = read_manifest(raw)
    if manifest is None:
        raise AdapterRejected(tuple(reasons))
    return manifest


def read_manifest(raw: bytes) -> tuple[Manifest | None, list[Reason]]:
    """Parse like :func:`parse_manifest`, but return the reasons to callers that have more checks to run.

    Returns:
        The manifest, or None and at least one reason.
    """
    manifest, reasons = inspect_manifest(raw)
    return (None if reasons else manifest), reasons


def inspect_manifest(raw: bytes) -> tuple[Manifest | None, list[Reason]]:
    """Parse the config and collect all reasons against it, so that the tensors can be checked in the same run.

    Values that are refused are replaced by a placeholder: see :func:`declares_ranks`.

    Returns:
        The manifest and the reasons. The manifest is None if the bytes are too large, not JSON, or not a PEFT config.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        return None, [Reason("config_too_large", CONFIG_FILE, f"{len(raw)} bytes", f"{MAX_CONFIG_BYTES} bytes")]
    try:
        config = parse_object(raw)
    except ValueError as error:
        return None, [Reason("config_not_json", CONFIG_FILE, str(error)[:120], "one JSON object in UTF-8")]
    if foreign := foreign_config(config):
        return None, [foreign]
    reader = _Reader(config)
    return reader.manifest(), reader.reasons


def declares_ranks(reasons: Iterable[Reason]) -> bool:
    """Return whether a manifest with these reasons has every declared rank, i.e. no placeholder among them."""
    return not any(reason.field == "r" or reason.field.startswith("rank_pattern") for reason in reasons)


class _Reader:
    """Reader of one config. A refused value becomes a reason and a harmless placeholder, so that all are reported."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.reasons: list[Reason] = []

    def manifest(self) -> Manifest:
        self._check_features()
        self._check_constants()
        targets, target_pattern = self._targets()
        excluded, excluded_pattern = self._excluded()
        return Manifest(
            rank=self._rank("r", self.config.get("r")),
            alpha=self._alpha("lora_alpha", self.config.get("lora_alpha")),
            rslora=self._rslora(),
            targets=targets,
            target_pattern=target_pattern,
            excluded=excluded,
            excluded_pattern=excluded_pattern,
            layers=self._layers(),
            rank_patterns=tuple(
                (Pattern(key, whole=False), self._rank(f"rank_pattern[{show(key)}]", value))
                for key, value in self._patterns("rank_pattern").items()
            ),
            alpha_patterns=tuple(
                (Pattern(key, whole=False), self._alpha(f"alpha_pattern[{show(key)}]", value))
                for key, value in self._patterns("alpha_pattern").items()
            ),
            trained_on=self._trained_on(),
            ties_weights=bool(self.config.get("ensure_weight_tying")),
        )

    def _refuse(self, code: str, field: str, allowed: str, found: object) -> None:
        self.reasons.append(Reason(code, field, show(found), allowed))

    def _check_features(self) -> None:
        for key, value in self.config.items():
            if key in SERVED or key in INFORMATIONAL or key in TRAINING_ONLY or not value:
                continue
            if key in REFUSED:
                self._refuse("unsupported_feature", key, "null, false or empty: the engine cannot serve it", value)
            else:
                self._refuse("unknown_key", key if _NAME.fullmatch(key) else show(key), UNKNOWN_KEY, value)

    def _check_constants(self) -> None:
        if self.config.get("peft_type") != "LORA":
            self._refuse("unsupported_peft_type", "peft_type", "LORA", self.config.get("peft_type"))
        if self.config.get("bias", "none") != "none":
            self._refuse("unsupported_feature", "bias", "none", self.config["bias"])
        if not isinstance(self.config.get("task_type"), str | None):
            self._refuse("invalid_value", "task_type", "a task of PEFT's in text, or null", self.config["task_type"])
        init = self.config.get("init_lora_weights")
        if not (init is None or isinstance(init, bool) or (isinstance(init, str) and init.lower() in SERVED_INITS)):
            allowed = f"true, false, {', '.join(SERVED_INITS)}; others change the base's weights too"
            self.reasons.append(changed_base(init, allowed))
        if other := other_architecture(self.config):
            self.reasons.append(other)
        if self.config.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
            self._refuse("invalid_value", "layers_pattern", "null or layers", self.config["layers_pattern"])

    def _trained_on(self) -> str:
        value = self.config.get("base_model_name_or_path")
        return show_name(value) if isinstance(value, str) else ""

    def _rank(self, field: str, value: object) -> int:
        if type(value) is int and 1 <= value <= MAX_RANK:
            return value
        self._refuse("invalid_value", field, f"an integer from 1 to {MAX_RANK}", value)
        return 1

    def _alpha(self, field: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_ALPHA:
            return float(value)
        self._refuse("invalid_value", field, f"a number above 0, at most {MAX_ALPHA}", value)
        return 1.0

    def _rslora(self) -> bool:
        value = self.config.get("use_rslora")
        if not (value is None or isinstance(value, bool)):
            self._refuse("invalid_value", "use_rslora", "true or false", value)
        return value is True

    def _patterns(self, field: str) -> dict[str, Any]:
        value = self.config.get(field) or {}
        if isinstance(value, dict):
            return value
        self._refuse("invalid_value", field, "an object from module names to numbers", value)
        return {}

    def _targets(self) -> tuple[frozenset[str] | None, Pattern | None]:
        value = self.config.get("target_modules")
        if isinstance(value, str) and value:
            return (
                (frozenset(LINEAR_MODULES), None) if value.lower() == ALL_LINEAR else (None, Pattern(value, whole=True))
            )
        if not value:
            self._refuse("invalid_value", "target_modules", "a list of module names, at least one", value)
            return None, None
        return frozenset(self._names("target_modules", value)), None

    def _excluded(self) -> tuple[frozenset[str], Pattern | None]:
        value = self.config.get("exclude_modules") or []
        if isinstance(value, str):
            return frozenset(), Pattern(value, whole=True)
        return frozenset(self._names("exclude_modules", value)), None

    def _names(self, field: str, value: object) -> tuple[str, ...]:
        if (
            isinstance(value, list)
            and len(value) <= _MAX_NAMES
            and all(isinstance(name, str) and _NAME.fullmatch(name) for name in value)
        ):
            return tuple(value)
        self._refuse("invalid_value", field, f"a list of module names, each {_NAME_WORDS}", value)
        return ()

    def _layers(self) -> frozenset[int] | None:
        value = self.config.get("layers_to_transform")
        listed = value if isinstance(value, list) else [value]
        if value is None or value == []:
            return None
        if len(listed) <= _MAX_LAYERS_LISTED and all(type(layer) is int and layer >= 0 for layer in listed):
            return frozenset(listed)
        self._refuse("invalid_value", "layers_to_transform", "null, a layer's index, or a list of them", value)
        return None

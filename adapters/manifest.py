"""``adapter_config.json``, as PEFT's LoraConfig writes it, to a typed manifest.

Every key is served, informational or refused (:mod:`adapters.peft_keys`). A refused one is allowed when it is switched
off (null, false, 0 or empty), as PEFT writes it for everyone; so is an unknown one, whose meaning cannot be known.

The tensors say what is adapted. vLLM never looks at ``target_modules``, ``exclude_modules`` or ``layers_to_transform``:
it applies the tensors it finds. PEFT applies those that the config lets it, so a tensor that the config leaves out is
refused. An entry of ``target_modules`` without tensors is a warning: PEFT passes over names that the base lacks, and a
module whose tensors are missing computes what the base does.

Regular expressions (a text in ``target_modules`` or ``exclude_modules``, and every key of ``rank_pattern`` and
``alpha_pattern``) are kept as they are written. They run only where :mod:`adapters.validation` limits their time.
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

#: PEFT's word for every linear layer but the head, in any case of letters.
ALL_LINEAR = "all-linear"

#: What is said of a key that is neither PEFT's nor known to be harmless.
UNKNOWN_KEY = "not a key of PEFT's LoraConfig 0.21; remove it if it is only about training"

MAX_RANK = 2**15
MAX_ALPHA = 2**20

_NAME = re.compile(r"[\x20-\x7e]{1,128}", re.ASCII)
_NAME_WORDS = "1 to 128 printable ASCII characters"
_MAX_NAMES = 10_000
_MAX_LAYERS_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class Declared:
    """What a manifest says of one module.

    Attributes:
        scaling: what the product of the two matrices is multiplied with.
        targeted, excluded: whether ``target_modules`` names it, and whether ``exclude_modules`` does.
    """

    rank: int
    alpha: float
    scaling: float
    targeted: bool
    excluded: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an adapter declares about itself.

    Module names are those of the base, for example ``model.layers.0.self_attn.q_proj``.

    Attributes:
        rank, alpha: of every module that no pattern matches.
        rslora: rank-stabilised scaling.
        targets: full names or their ends (``q_proj``); None if a regular expression stands for them.
        target_pattern: that expression.
        excluded: full names or their ends that are not adapted.
        excluded_pattern: a regular expression of full names that are not adapted.
        layers: the only layers adapted, or None for all.
        rank_patterns, alpha_patterns: in the order of the file; the first that matches a module's name counts.
        trained_on: ``base_model_name_or_path``, shortened; empty if it is not told.
        ties_weights: whether PEFT adapts the embedding too where it shares its matrix with an adapted head.
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
        """The largest rank declared anywhere, whether a module has it or not: vLLM compares this with its limit."""
        return max([self.rank, *(rank for _, rank in self.rank_patterns)])

    def rank_of(self, module: str) -> int:
        return next((rank for pattern, rank in self.rank_patterns if pattern.matches(module)), self.rank)

    def alpha_of(self, module: str) -> float:
        return next((alpha for pattern, alpha in self.alpha_patterns if pattern.matches(module)), self.alpha)

    def scaling_of(self, module: str) -> float:
        """What the product of the two matrices is multiplied with: alpha/r, or alpha/sqrt(r) under rsLoRA."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.rslora else rank)

    def targets_of(self, module: str) -> frozenset[str]:
        """The entries of ``targets`` that name the module."""
        return frozenset(ends(module)) & (self.targets or frozenset())

    def declare(self, module: str) -> Declared:
        """All that is said of one module; runs the config's regular expressions.

        Raises:
            adapters.patterns.InvalidPattern
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
    """The module's name and each of its ends after a dot: what PEFT compares names in a config with."""
    parts = module.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def parse_manifest(raw: bytes) -> Manifest:
    """Parse the bytes of ``adapter_config.json``.

    Raises:
        AdapterRejected: with every reason.
    """
    manifest, reasons = read_manifest(raw)
    if manifest is None:
        raise AdapterRejected(tuple(reasons))
    return manifest


def read_manifest(raw: bytes) -> tuple[Manifest | None, list[Reason]]:
    """As :func:`parse_manifest`, for whoever has more to check: the manifest, or None and at least one reason."""
    manifest, reasons = inspect_manifest(raw)
    return (None if reasons else manifest), reasons


def inspect_manifest(raw: bytes) -> tuple[Manifest | None, list[Reason]]:
    """The manifest beside the reasons against it, so that tensors can be compared with what is left of it.

    None: nothing is left, as it is not JSON or not PEFT's. Values with a reason have a stand-in: see
    :func:`declares_ranks`.
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
    """Whether a manifest with these reasons says which rank each module has: no stand-in is among its ranks."""
    return not any(reason.field == "r" or reason.field.startswith("rank_pattern") for reason in reasons)


class _Reader:
    """Reads one config; a value that is refused becomes a reason and a harmless stand-in, so that all are found."""

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

"""Grammar of user-supplied names, and the immutable identity of a version.

The grammar of a model name, as callers use it in ``adapter_id`` and ``model``::

    pricing              the adapter's ``default`` alias
    pricing:canary       another alias
    pricing@3            version number 3
    retail/pricing@3     version 3 of an adapter that the tenant ``retail`` shares with the caller
"""

import hashlib
import re
from dataclasses import dataclass

from adapters.errors import InvalidName

DEFAULT_ALIAS = "default"

# vLLM treats these words specially in chat content parts: an adapter called `text` would hijack base-model chats.
RESERVED_NAMES = frozenset({"text", "image", "audio", "video", "input"})

MAX_VERSION_NUMBER = 2**31 - 1

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
SLUG_WORDS = "1 to 63 characters of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit"


@dataclass(frozen=True, slots=True)
class ModelName:
    """Parsed model name: exactly one of ``alias`` and ``number`` is set.

    Attributes:
        owner: slug of the tenant that owns the adapter; None for the caller's tenant.
    """

    adapter: str
    alias: str | None = DEFAULT_ALIAS
    number: int | None = None
    owner: str | None = None

    def __str__(self) -> str:
        """Format the name as a caller writes it."""
        prefix = f"{self.owner}/" if self.owner else ""
        if self.alias is None:
            return f"{prefix}{self.adapter}@{self.number}"
        return f"{prefix}{self.adapter}" + ("" if self.alias == DEFAULT_ALIAS else f":{self.alias}")


@dataclass(frozen=True, slots=True)
class FilePair:
    """SHA-256 (hex) and size in bytes of ``adapter_config.json`` and ``adapter_model.safetensors``."""

    config_digest: str
    weights_digest: str
    config_bytes: int
    weights_bytes: int

    @property
    def digest(self) -> str:
        return content_digest(self.config_digest, self.weights_digest)


@dataclass(frozen=True, slots=True)
class VersionKey:
    """Identity of one immutable version and of two files of it; plain and picklable.

    By default these are the files that the engine reads. An upload that is not in normal form (:mod:`adapters.normal`)
    also has a key for the uploaded files, which is used only where it is named.

    Attributes:
        version_id: id of the version row, never reused; vLLM's ``lora_int_id``.
        config_digest, weights_digest: SHA-256 (hex) of the two files' bytes.
        config_bytes, weights_bytes: their sizes in bytes.
    """

    version_id: int
    config_digest: str
    weights_digest: str
    config_bytes: int
    weights_bytes: int

    @property
    def digest(self) -> str:
        return content_digest(self.config_digest, self.weights_digest)

    @property
    def lora_name(self) -> str:
        """vLLM's name for the version, derived from the files that it reads.

        vLLM includes it in its prefix-cache keys, so it is never reused.
        """
        return f"{self.version_id}@{self.digest[:16]}"

    @property
    def size(self) -> int:
        return self.config_bytes + self.weights_bytes


def content_digest(config_digest: str, weights_digest: str) -> str:
    """Compute the digest of a version: SHA-256 (hex) over the digests of its two files, config first."""
    return hashlib.sha256(f"tenora-adapter\n{config_digest}\n{weights_digest}\n".encode()).hexdigest()


def parse_slug(text: str, *, field: str) -> str:
    """Validate the name of a tenant, adapter or alias and return it unchanged.

    Raises:
        InvalidName: the text is not a slug.
    """
    if not _SLUG.fullmatch(text):
        raise InvalidName(field, text[:80], SLUG_WORDS)
    return text


def parse_adapter_slug(text: str, *, base_model: str) -> str:
    """Validate the name of a new adapter: a slug that is neither reserved nor the base model's name.

    Raises:
        InvalidName: the text is not such a name.
    """
    parse_slug(text, field="adapter")
    if text in RESERVED_NAMES or text == base_model:
        raise InvalidName("adapter", text, f"any name but {', '.join(sorted(RESERVED_NAMES | {base_model}))}")
    return text


def parse_model_name(text: str) -> ModelName:
    """Parse a model name from a request. The caller handles the base model's name first.

    Raises:
        InvalidName: the text does not match the grammar.
    """
    prefix, slash, rest = text.rpartition("/")
    owner = parse_slug(prefix, field="model") if slash else None
    if "@" in rest:
        adapter, _, number = rest.partition("@")
        if not _NUMBER.fullmatch(number) or int(number) > MAX_VERSION_NUMBER:
            raise InvalidName("model", text[:80], "ADAPTER@NUMBER with a number from 1")
        return ModelName(parse_slug(adapter, field="model"), alias=None, number=int(number), owner=owner)
    adapter, colon, alias = rest.partition(":")
    parse_slug(adapter, field="model")
    return ModelName(adapter, alias=parse_slug(alias, field="model") if colon else DEFAULT_ALIAS, owner=owner)

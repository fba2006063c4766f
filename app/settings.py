"""Settings, read once at start from environment variables with the prefix ``TENORA_``."""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseModel):
    """Arguments of the vLLM engine (``TENORA_ENGINE__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_loras: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        "auto", description="LoRA slots: distinct adapters that run at the same time; auto: sized from memory"
    )
    host_bytes: int = Field(
        4 * 2**30, ge=2**20, description="host memory in bytes for adapters that are staged for a slot"
    )
    max_lora_rank: int = Field(64, description="largest rank served; every slot is padded to it")
    lora_head: bool = Field(
        False,
        description="serve adapters of lm_head too: each slot takes max_lora_rank times the vocabulary more, and "
        "logprobs of prompts are refused",
    )
    max_model_len: int | None = Field(
        None, ge=16, description="context length in tokens; default: the base model's own"
    )
    dtype: str = Field("auto", description="dtype of the base's weights, as vLLM names it; no float32 on a GPU")
    quantization: str | None = Field(None, description="vLLM's quantization method for the base, e.g. awq, gptq, fp8")
    kv_cache_bytes: int | None = Field(
        None, ge=2**20, description="KV cache in bytes; default: 1 GiB on a CPU, what vLLM finds free on a GPU"
    )
    tool_call_parser: str | None = Field(
        None,
        description="how the base writes tool calls, as vLLM names it, e.g. hermes, mistral; "
        "default: llama3_json where the base's tokenizer has its token, else pythonic",
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share the base")
    extra_args: dict[str, Any] = Field(
        default_factory=dict, description='any other vLLM engine argument, as JSON: {"max_num_seqs": 64}'
    )
    hang_s: float = Field(
        120,
        gt=0,
        description="seconds without an answer after which the engine is killed and started again; "
        "more than its longest step takes",
    )
    restart_backoff_s: float = Field(
        1.0, gt=0, description="first pause before a dead engine is started again; doubles up to 60 s"
    )


class QueueSettings(BaseModel):
    """Admission to the engine and limits of the queue (``TENORA_QUEUE__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int | None = Field(
        None, ge=1, description="sequences in the engine at the same time; default: the engine's max_num_seqs"
    )
    max_age_s: float = Field(
        0.5, gt=0, description="seconds that a waiting adapter may be passed over by requests for adapters in slots"
    )
    requests: int = Field(10_000, ge=1, description="requests that may wait, of all tenants together")
    tenant_requests: int = Field(1_000, ge=1, description="requests of one tenant that may wait")
    seconds: float = Field(600, gt=0, description="longest estimated wait of a request that is let into the queue")


class LimitSettings(BaseModel):
    """Limits of connections, requests, uploads and merges (``TENORA_LIMITS__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connections: int = Field(4096, ge=1, description="connections open at the same time")
    header_bytes: int = Field(64 * 1024, ge=8192, description="largest request line and headers in bytes")
    header_seconds: float = Field(20, gt=0, description="longest time until a request's headers are there")
    unread_seconds: float = Field(60, gt=0, description="longest time that a client may leave an answer unread")
    body_bytes: int = Field(2 * 2**20, ge=1024, description="largest JSON body in bytes")
    body_bytes_per_second: int = Field(
        16 * 1024, ge=1, description="least rate of a request's body, of an upload too, in bytes a second"
    )
    body_grace_seconds: float = Field(
        5, gt=0, description="seconds that a body may be behind its least rate, silence included"
    )
    config_bytes: int = Field(2**20, ge=1024, description="largest adapter_config.json in bytes")
    weights_bytes: int = Field(4 * 2**30, ge=1024, description="largest adapter_model.safetensors in bytes")
    uploads: int = Field(
        4, ge=1, description="uploads received and validated at the same time; half of them for one tenant"
    )
    upload_idle_seconds: float = Field(
        60, gt=0, description="longest wait for a body's next bytes, and for an upload's place to be received"
    )
    open_uploads: int = Field(16, ge=1, le=1000, description="resumable uploads that a tenant may have under way")
    upload_hours: float = Field(24, gt=0, le=720, description="hours after which a resumable upload is given up")
    parts: int = Field(
        32, ge=2, description="parts of resumable uploads received at the same time; half of them for one tenant"
    )
    n: int = Field(8, ge=1, description="largest `n` (and LoRAX `best_of`)")
    logprobs: int = Field(20, ge=0, description="largest `logprobs` / `top_logprobs`")
    stop: int = Field(16, ge=1, description="most stop strings")
    stop_bytes: int = Field(256, ge=1, description="longest stop string in UTF-8 bytes")
    schema_bytes: int = Field(
        64 * 1024, ge=256, description="largest JSON schema, regex, choice list or tool list in bytes"
    )
    prompts: int = Field(128, ge=1, description="most prompts in one completions request")
    validation_seconds: float = Field(120, gt=0, description="CPU seconds that validating one upload may take")
    validation_bytes: int = Field(2 * 2**30, ge=2**28, description="address space of the validating process in bytes")
    merges: int = Field(4, ge=1, description="merges at the same time: one runs, the others wait")
    merge_seconds: float = Field(600, gt=0, description="CPU seconds that one merge may take, of all cores together")
    merge_bytes: int = Field(16 * 2**30, ge=2**31, description="address space of the merging process in bytes")
    max_new_tokens: int = Field(256, ge=1, description="LoRAX default when a request gives no max_new_tokens")
    system_prompt_bytes: int = Field(16 * 1024, ge=1, description="longest default system prompt in UTF-8 bytes")
    chat_template_bytes: int = Field(64 * 1024, ge=1, description="longest chat template of a version in UTF-8 bytes")
    template_seconds: float = Field(0.5, gt=0, description="CPU seconds that rendering one chat template may take")
    template_address_bytes: int = Field(
        2**28, ge=2**27, description="address space of the process that renders a chat template in bytes"
    )
    template_output_bytes: int = Field(4 * 2**20, ge=1024, description="longest prompt that a chat template may write")
    template_workers: int = Field(4, ge=1, description="chat templates of versions rendered at the same time")


class LogSettings(BaseModel):
    """Log output on stderr (``TENORA_LOG__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["auto", "json", "text"] = Field(
        "auto", description="how log lines look: JSON objects or text; auto: text on a terminal, else JSON"
    )
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least level of lines that are written; vLLM's own: VLLM_LOGGING_LEVEL"
    )
    access: bool = Field(True, description="whether each answered request leaves a line, at INFO")


# No segment of the path is empty, "." or "..".
_S3_PREFIX = r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/([^/.]|[^/.][^/]|\.[^/.]|[^/]{3,})[^/]*)*/?$"


class ImportSettings(BaseModel):
    """Allowed sources of adapter imports (``TENORA_IMPORTS__*``); by default there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hf: bool = Field(False, description="whether adapters may be imported from the Hugging Face Hub")
    hf_endpoint: str = Field(
        "https://huggingface.co", pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", description="the Hub, or a mirror of it"
    )
    hf_token: SecretStr | None = Field(None, description="what this server reads the Hub with; default: nothing")
    hf_owners: frozenset[str] = Field(
        frozenset(), description="users and organisations whose repositories may be imported, as JSON; empty: any"
    )
    s3_prefixes: tuple[Annotated[str, Field(pattern=_S3_PREFIX)], ...] = Field(
        (), description='prefixes that may be imported from, as JSON: ["s3://bucket/prefix/"]'
    )
    seconds: float = Field(1800, gt=0, description="longest time that fetching one import may take")
    at_once: int = Field(
        2, ge=1, description="imports at the same time, half of them for one tenant; each takes an upload's place too"
    )


class Settings(BaseSettings):
    """The server's settings. Unknown ``TENORA_`` names are an error."""

    model_config = SettingsConfigDict(
        env_prefix="TENORA_", env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    home: Path = Field(Path(".tenora"), description="SQLite, local blobs, disk cache, secrets, demo")
    database_url: str | None = Field(
        None, description="default: sqlite+aiosqlite in HOME; postgresql://... in production"
    )
    store_url: str | None = Field(None, description="default: file://HOME/blobs; or s3://bucket/prefix")
    s3_endpoint_url: str | None = Field(None, description="an S3 server other than AWS")
    s3_public_endpoint_url: str | None = Field(
        None, description="the S3 server's address for clients that send parts, if it is not s3_endpoint_url"
    )
    s3_region: str | None = Field(None, description="region of the bucket")
    base_model: str = Field("", description="local path or hub id of the base Llama; empty: the demo base in HOME")
    base_model_revision: str | None = Field(None, description="revision of a hub id: a commit, to be sure")
    base_model_name: str | None = Field(
        None, description="the name callers use for the base; default: last part of base_model"
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    cors_origins: tuple[Annotated[str, Field(pattern=r"^(\*|https?://[^/?#@\s]+)$")], ...] = Field(
        (),
        description='origins of web pages whose scripts may call this server, as JSON: ["https://app.example.org"]; '
        "empty: none",
    )
    drain_seconds: float = Field(
        5,
        ge=0,
        description="seconds after SIGTERM in which the server says that it is not ready and still takes requests; "
        "longer than a proxy keeps an idle connection to it",
    )
    grace_seconds: float = Field(
        30, ge=0, description="seconds that running requests have to finish after that; then they end with an error"
    )
    pepper: SecretStr | None = Field(
        None, description="secret that keys are hashed with; default: made once in HOME/secrets"
    )
    accepted_peppers: tuple[SecretStr, ...] = Field(
        (), description="other values of it under which keys and seals are still good, as JSON, while it is rotated"
    )
    prompt_format: Literal["", "llama-2", "llama-3", "mistral"] = Field(
        "", description="prompt format of chats, for a base without a chat template; empty: the base's own template"
    )
    metrics_key_required: bool = Field(
        True, description="whether /metrics asks for a platform key, with the scope metrics or admin"
    )
    preload: tuple[str, ...] = Field(
        (),
        description='versions loaded before the server says that it is ready, as JSON: ["tenant/adapter", '
        '"tenant/adapter:alias", "tenant/adapter@3"]',
    )
    limit_accounts: Literal["auto", "memory", "database"] = Field(
        "auto",
        description="where limits are counted: in this server's memory, or in the database, together with other "
        "servers; auto: in the database, if that is PostgreSQL",
    )
    limits_unavailable: Literal["refuse", "admit"] = Field(
        "refuse",
        description="what becomes of requests with limits while the database takes no writes, so that nobody can count "
        "them; admit: they are counted afterwards",
    )
    currency: str = Field(
        "USD",
        pattern="^[A-Z]{3}$",
        description="what prices and budgets are in (ISO 4217); another one converts nothing that is there",
    )
    usage_days: int = Field(
        90, ge=0, description="days that the record of each request is kept; the sums of hours stay; 0: for ever"
    )
    audit_days: int = Field(0, ge=0, description="days that the audit trail is kept; 0: for ever")
    fetch_seconds: float = Field(
        30, gt=0, description="seconds that a request waits for an adapter's bytes from the store"
    )
    cache_bytes: int = Field(20 * 2**30, ge=2**20, description="budget of this node's disk cache in bytes")
    engine: EngineSettings = Field(default_factory=EngineSettings)
    queue: QueueSettings = Field(default_factory=QueueSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    imports: ImportSettings = Field(default_factory=ImportSettings)
    log: LogSettings = Field(default_factory=LogSettings)


PREFIX = "TENORA_"

#: Variables that the command line reads as a client; the server ignores them.
CLIENT_NAMES = frozenset({"TENORA_URL", "TENORA_KEY"})

_MAPPINGS = ("TENORA_ENGINE__EXTRA_ARGS__",)


_SERVICE_LINK = re.compile(
    r"TENORA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)", re.ASCII
)
_LINK_VALUE = re.compile("(tcp|udp|sctp)://")
_SERVICE_LINKS = (
    "Kubernetes has set {names} for a Service whose name begins with tenora. "
    "Set enableServiceLinks: false in the pod's spec, or rename the Service."
)


class UnknownSetting(ValueError):
    """The environment holds ``TENORA_`` variables that are not settings."""


def setting_names() -> tuple[str, ...]:
    """Return the environment variables of all settings, sorted."""
    return tuple(sorted(_names(Settings, PREFIX)))


def check_environment(environ: Mapping[str, str]) -> None:
    """Reject unknown variables with the prefix ``TENORA_``, which pydantic ignores silently.

    Raises:
        UnknownSetting: names each of them and the nearest settings.
    """
    known = setting_names()
    links = sorted(name for name, value in environ.items() if _is_service_link(name, value, known))
    complaints = [_SERVICE_LINKS.format(names=", ".join(links))] if links else []
    for name in sorted(environ.keys() - links):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in CLIENT_NAMES or _is_setting(upper, known):
            continue
        nearest = difflib.get_close_matches(upper, [*known, *CLIENT_NAMES], n=3, cutoff=0.6)
        complaints.append(f"{name}: no such setting; nearest: {', '.join(nearest) or 'none'}")
    if complaints:
        raise UnknownSetting("\n".join(complaints))


def _is_service_link(name: str, value: str, known: tuple[str, ...]) -> bool:
    """Return whether Kubernetes set this variable, as it does in every pod for a Service ``tenora`` or ``tenora-...``.

    https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    return bool(_SERVICE_LINK.fullmatch(name)) and (name not in known or bool(_LINK_VALUE.match(value)))


def _is_setting(name: str, known: tuple[str, ...]) -> bool:
    # A group may be one JSON value (TENORA_ENGINE), and a mapping may be set entry by entry (..._ARGS__KEY).
    return name in known or any(other.startswith(f"{name}__") for other in known) or name.startswith(_MAPPINGS)


def _names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _names(kind, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}"

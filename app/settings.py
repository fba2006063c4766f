"""Settings, read once at start from variables with the prefix ``TENORA_``, and from files that they name."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.settings_files import CONFIG_FILE, SUFFIX, SettingsFiles, hide_file_names


class EngineSettings(BaseModel):
    """Arguments of the vLLM engine (``TENORA_ENGINE__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_loras: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        "auto",
        description="LoRA slots, the number of adapters that can run at the same time; auto: computed from memory",
    )
    host_bytes: int = Field(
        4 * 2**30, ge=2**20, description="Host memory for adapters that are staged for a slot, in bytes"
    )
    max_lora_rank: int = Field(64, description="Largest LoRA rank that is served. Every slot is padded to this rank.")
    lora_head: bool = Field(
        False,
        description="Serve adapters that change lm_head. Each slot then holds max_lora_rank times the vocabulary "
        "size more values, and prompt logprobs are refused.",
    )
    max_model_len: int | None = Field(
        None, ge=16, description="Context length in tokens; default: the context length of the base model"
    )
    dtype: str = Field(
        "auto",
        description="Data type of the base model's weights, in vLLM's spelling. float32 is supported on a CPU only.",
    )
    quantization: str | None = Field(
        None, description="vLLM's quantization method for the base model, e.g. awq, gptq or fp8"
    )
    kv_cache_bytes: int | None = Field(
        None,
        ge=2**20,
        description="Size of the KV cache in bytes; default: 1 GiB on a CPU, the memory that vLLM finds free on a GPU",
    )
    tool_call_parser: str | None = Field(
        None,
        description="vLLM's tool call parser for the base model, e.g. hermes or mistral; default: llama3_json if the "
        "tokenizer has its token, else pythonic",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="Number of GPUs that share the base model (tensor parallelism)"
    )
    extra_args: dict[str, Any] = Field(
        default_factory=dict, description='Other vLLM engine arguments as JSON, e.g. {"max_num_seqs": 64}'
    )
    patches: str = Field(
        "all",
        description="Optional patches of vLLM that apply: all, none, or all except a list, e.g. "
        "-malloc_trim,-heap_freeze. docs/vllm.md lists them.",
    )
    hang_s: float = Field(
        120,
        gt=0,
        description="Seconds without an answer after which the engine is killed and restarted. The value must exceed "
        "the engine's longest step.",
    )
    restart_backoff_s: float = Field(
        1.0,
        gt=0,
        description="Pause in seconds before the first restart of a dead engine. It doubles with each restart, up to "
        "60 s.",
    )


class QueueSettings(BaseModel):
    """Admission to the engine and limits of the queue (``TENORA_QUEUE__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int | None = Field(
        None,
        ge=1,
        description="Maximum number of sequences in the engine at the same time; default: the engine's max_num_seqs",
    )
    max_age_s: float = Field(
        0.5,
        gt=0,
        description="Maximum time in seconds for which requests for adapters in slots may overtake a waiting adapter",
    )
    requests: int = Field(10_000, ge=1, description="Maximum number of waiting requests of all tenants together")
    tenant_requests: int = Field(1_000, ge=1, description="Maximum number of waiting requests of one tenant")
    seconds: float = Field(
        600, gt=0, description="Maximum estimated wait in seconds. The queue refuses requests that would wait longer."
    )


class LimitSettings(BaseModel):
    """Limits of connections, requests, uploads and merges (``TENORA_LIMITS__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connections: int = Field(4096, ge=1, description="Maximum number of open connections")
    header_bytes: int = Field(64 * 1024, ge=8192, description="Maximum size of the request line and headers, in bytes")
    header_seconds: float = Field(20, gt=0, description="Maximum time to receive a request's headers, in seconds")
    unread_seconds: float = Field(
        60, gt=0, description="Maximum time that a client may leave an answer unread, in seconds"
    )
    body_bytes: int = Field(2 * 2**20, ge=1024, description="Maximum size of a JSON body, in bytes")
    body_bytes_per_second: int = Field(
        16 * 1024, ge=1, description="Minimum transfer rate of a request body, uploads included, in bytes per second"
    )
    body_grace_seconds: float = Field(
        5, gt=0, description="Maximum time that a body may lag behind the minimum rate, silence included, in seconds"
    )
    config_bytes: int = Field(2**20, ge=1024, description="Maximum size of adapter_config.json, in bytes")
    weights_bytes: int = Field(4 * 2**30, ge=1024, description="Maximum size of adapter_model.safetensors, in bytes")
    uploads: int = Field(
        4, ge=1, description="Uploads received and validated at the same time. One tenant gets at most half of them."
    )
    upload_idle_seconds: float = Field(
        60, gt=0, description="Maximum wait for the next bytes of a body, and of an upload for its turn, in seconds"
    )
    open_uploads: int = Field(
        16, ge=1, le=1000, description="Maximum number of unfinished resumable uploads of one tenant"
    )
    upload_hours: float = Field(
        24, gt=0, le=720, description="Hours after which an unfinished resumable upload expires"
    )
    parts: int = Field(
        32,
        ge=2,
        description="Parts of resumable uploads received at the same time, and files of batches likewise. One tenant "
        "gets at most half of them.",
    )
    n: int = Field(8, ge=1, description="Maximum value of `n` (and of LoRAX's `best_of`)")
    logprobs: int = Field(20, ge=0, description="Maximum value of `logprobs` and `top_logprobs`")
    stop: int = Field(16, ge=1, description="Maximum number of stop strings")
    stop_bytes: int = Field(256, ge=1, description="Maximum length of a stop string, in UTF-8 bytes")
    schema_bytes: int = Field(
        64 * 1024, ge=256, description="Maximum size of a JSON schema, regex, choice list or tool list, in bytes"
    )
    prompts: int = Field(128, ge=1, description="Maximum number of prompts in one completions request")
    validation_seconds: float = Field(120, gt=0, description="CPU time limit for validating one upload, in seconds")
    validation_bytes: int = Field(
        2 * 2**30, ge=2**28, description="Address space limit of the validation process, in bytes"
    )
    merges: int = Field(4, ge=1, description="Maximum number of merges at the same time: one runs, the others wait")
    merge_seconds: float = Field(
        600, gt=0, description="CPU time limit of one merge, over all cores together, in seconds"
    )
    merge_bytes: int = Field(16 * 2**30, ge=2**31, description="Address space limit of the merge process, in bytes")
    max_new_tokens: int = Field(256, ge=1, description="Default of max_new_tokens for LoRAX requests without it")
    system_prompt_bytes: int = Field(
        16 * 1024, ge=1, description="Maximum length of a default system prompt, in UTF-8 bytes"
    )
    chat_template_bytes: int = Field(
        64 * 1024, ge=1, description="Maximum length of a version's chat template, in UTF-8 bytes"
    )
    template_seconds: float = Field(0.5, gt=0, description="CPU time limit for rendering one chat template, in seconds")
    template_address_bytes: int = Field(
        2**28, ge=2**27, description="Address space limit of the process that renders chat templates, in bytes"
    )
    template_output_bytes: int = Field(
        4 * 2**20, ge=1024, description="Maximum length of a prompt rendered from a chat template, in bytes"
    )
    template_workers: int = Field(4, ge=1, description="Chat templates of versions that are rendered at the same time")


class BatchSettings(BaseModel):
    """Files and batches (``TENORA_BATCH__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file_bytes: int = Field(200 * 10**6, ge=1024, description="Maximum size of a file, in bytes")
    tenant_bytes: int = Field(10 * 10**9, ge=1024, description="Maximum size of all files of one tenant, in bytes")
    tenant_files: int = Field(1_000, ge=1, description="Maximum number of files of one tenant")
    lines: int = Field(50_000, ge=1, le=100_000, description="Maximum number of lines in a batch")
    line_bytes: int = Field(2**20, ge=1024, description="Maximum length of a line, in bytes")
    open_batches: int = Field(100, ge=1, description="Maximum number of unfinished batches of one tenant")
    waiting_lines: int = Field(
        200_000, ge=1, description="Maximum number of lines of one tenant's unfinished batches together"
    )
    local_bytes: int = Field(
        8 * 10**9,
        ge=2048,
        description="Maximum size of the uncompressed copies of files in HOME, in bytes. Files of one tenant that are "
        "read get at most half of it. The value must be at least twice file_bytes.",
    )
    file_days: float = Field(
        30, gt=0, le=3650, description="Days after which a file expires if its creator chooses no other time"
    )
    batch_days: float = Field(
        30,
        gt=0,
        le=3650,
        description="Days that a batch is kept after its end at least. It stays longer while one of its files is kept.",
    )
    weight: float = Field(
        0.01, gt=0, le=1, description="Weight of a tenant's batches in the engine's queue, relative to its requests"
    )
    window_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of the engine's window that lines may take while the server also gets other requests. After "
        "10 seconds without any, lines may take all of it.",
    )
    node_lost_s: float = Field(
        30, ge=5, description="Seconds without a heartbeat after which another server takes over a server's lines"
    )

    @model_validator(mode="after")
    def _room_for_files(self) -> Self:
        if self.local_bytes < 2 * self.file_bytes:
            raise ValueError(
                f"local_bytes is {self.local_bytes}; it must be at least twice file_bytes, {2 * self.file_bytes}"
            )
        return self


class RaySettings(BaseModel):
    """Engine replicas on Ray Serve (``TENORA_RAY__*``); they need the extra ``ray``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = Field(
        None,
        pattern=r"^(local|[^\s/:]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5})$",
        description="Ray cluster whose engine replicas this server uses, as host:port; local: the cluster that `tenora "
        "engines up` started on this HOME; default: no replicas, the engine runs in the server's process",
    )
    host: str = Field(
        "127.0.0.2",
        description="Address of this machine in the cluster that `tenora engines up` starts. Ray replaces 127.0.0.1 by "
        "the address of a network card, so the default is another loopback address.",
    )
    port: int = Field(0, ge=0, le=65535, description="Port of that cluster; 0: a free port")
    min_replicas: int = Field(
        1,
        ge=0,
        le=1000,
        description="Minimum number of engine replicas; 0: idle replicas end, and the next request starts one",
    )
    max_replicas: int = Field(1, ge=1, le=1000, description="Maximum number of engine replicas")
    cpus: float = Field(1, ge=0, description="CPU cores that Ray reserves for each replica")
    gpus: float | None = Field(
        None,
        ge=0,
        description="GPUs of each replica; default: tensor_parallel_size with vLLM's GPU build, 0 with its CPU build",
    )
    target_requests: float = Field(
        32, gt=0, description="Requests of one replica above which replicas are added, up to the maximum"
    )
    upscale_delay_s: float = Field(10, ge=0, description="Seconds of higher load before replicas are added")
    downscale_delay_s: float = Field(600, ge=0, description="Seconds of lower load before replicas are removed")
    pin_copies: int = Field(
        1, ge=1, le=1000, description="Minimum number of replicas that requests of a pinned version are spread over"
    )
    start_seconds: float = Field(
        600,
        gt=0,
        description="Maximum time that a server and `tenora engines up` wait for the first replica, in seconds",
    )
    database_url: str | None = Field(
        None,
        description="URL of the registry for engine replicas, with the role of `tenora server database-role`; default: "
        "TENORA_DATABASE_URL",
    )
    expected_start_s: float = Field(
        60,
        gt=0,
        description="Expected time until a replica that is started answers, in seconds; used until a server has "
        "measured it. Requests with a shorter deadline are refused at once while no replica is ready.",
    )
    plaintext: bool = Field(
        False,
        description="Allow a cluster without TLS on an address other than loopback. Prompts and answers then cross the "
        "network unencrypted.",
    )

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas is {self.min_replicas}; it must be at most max_replicas, {self.max_replicas}"
            )
        return self


class LogSettings(BaseModel):
    """Log output on stderr (``TENORA_LOG__*``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["auto", "json", "text"] = Field(
        "auto", description="Format of log lines; auto: text on a terminal, else JSON"
    )
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Minimum level of log lines. VLLM_LOGGING_LEVEL sets the level of vLLM's lines."
    )
    access: bool = Field(True, description="Log each answered request at level INFO")


# No segment of the path is empty, "." or "..".
_S3_PREFIX = r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/([^/.]|[^/.][^/]|\.[^/.]|[^/]{3,})[^/]*)*/?$"


class ImportSettings(BaseModel):
    """Allowed sources of adapter imports (``TENORA_IMPORTS__*``); by default there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hf: bool = Field(False, description="Allow imports of adapters from the Hugging Face Hub")
    hf_endpoint: str = Field(
        "https://huggingface.co",
        pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$",
        description="URL of the Hugging Face Hub or of a mirror",
    )
    hf_token: SecretStr | None = Field(
        None, description="Token with which this server reads the Hub; default: no token"
    )
    hf_owners: frozenset[str] = Field(
        frozenset(), description="Users and organisations whose repositories may be imported, as JSON; empty: all"
    )
    s3_prefixes: tuple[Annotated[str, Field(pattern=_S3_PREFIX)], ...] = Field(
        (), description='S3 prefixes that may be imported from, as JSON, e.g. ["s3://bucket/prefix/"]; empty: none'
    )
    seconds: float = Field(1800, gt=0, description="Maximum time to fetch one import, in seconds")
    at_once: int = Field(
        2,
        ge=1,
        description="Imports at the same time. One tenant gets at most half of them, and each import also counts as "
        "an upload.",
    )


class Settings(BaseSettings):
    """The server's settings. Unknown ``TENORA_`` names are an error."""

    model_config = SettingsConfigDict(
        env_prefix="TENORA_", env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    home: Path = Field(
        Path(".tenora"),
        description="Folder for SQLite, local blobs, disk cache, secrets and the demo, called HOME below",
    )
    database_url: str | None = Field(
        None, description="URL of the database; default: sqlite+aiosqlite in HOME. Use postgresql://... in production."
    )
    store_url: str | None = Field(
        None,
        description="URL of the adapter store: file:///absolute/path or s3://bucket/prefix; default: file://HOME/blobs",
    )
    s3_endpoint_url: str | None = Field(None, description="URL of an S3 server other than AWS")
    s3_public_endpoint_url: str | None = Field(
        None, description="URL of the S3 server for clients that upload parts directly; default: s3_endpoint_url"
    )
    s3_region: str | None = Field(None, description="Region of the S3 bucket")
    base_model: str = Field("", description="Local path or Hub id of the base Llama; empty: the demo base in HOME")
    base_model_revision: str | None = Field(
        None, description="Revision of the base model on the Hub, preferably a commit"
    )
    base_model_name: str | None = Field(
        None, description="Name of the base model in requests; default: the last part of base_model"
    )
    host: str = Field("127.0.0.1", description="Address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on")
    cors_origins: tuple[Annotated[str, Field(pattern=r"^(\*|https?://[^/?#@\s]+)$")], ...] = Field(
        (),
        description="Origins of web pages whose scripts may call this server, as JSON, e.g. "
        '["https://app.example.org"]; empty: none',
    )
    drain_seconds: float = Field(
        5,
        ge=0,
        description="Seconds after SIGTERM in which the server reports that it is not ready but accepts requests. "
        "The value must exceed the idle timeout of a proxy's connections.",
    )
    grace_seconds: float = Field(
        30,
        ge=0,
        description="Seconds that running requests get to finish after the drain. Then they end with an error.",
    )
    pepper: SecretStr | None = Field(
        None, description="Secret with which keys are hashed; default: generated once in HOME/secrets"
    )
    accepted_peppers: tuple[SecretStr, ...] = Field(
        (), description="Other peppers under which keys and seals stay valid while the pepper is rotated, as JSON"
    )
    prompt_format: Literal["", "llama-2", "llama-3", "mistral"] = Field(
        "",
        description="Prompt format of chats for a base model without a chat template; empty: the model's own template",
    )
    metrics_key_required: bool = Field(
        True, description="Require a platform key with the scope metrics or admin for /metrics"
    )
    metrics_residency: bool = Field(
        False,
        description="Show in /metrics which versions are loaded, for routers such as llm-d: vllm:lora_requests_info "
        "and tenora_version_resident, with ids of versions as names. Only with metrics_key_required.",
    )
    preload: tuple[str, ...] = Field(
        (),
        description='Versions to load before the server reports that it is ready, as JSON, e.g. ["tenant/adapter", '
        '"tenant/adapter:alias", "tenant/adapter@3"]',
    )
    limit_accounts: Literal["auto", "memory", "database"] = Field(
        "auto",
        description="Where limits are counted: in this server's memory, or in the database together with other "
        "servers; auto: in the database if it is PostgreSQL",
    )
    limits_unavailable: Literal["refuse", "admit"] = Field(
        "refuse",
        description="Handling of requests with limits while the database accepts no writes: refuse them, or admit "
        "them and count them later",
    )
    currency: str = Field(
        "USD",
        pattern="^[A-Z]{3}$",
        description="Currency of prices and budgets (ISO 4217). A change does not convert existing amounts.",
    )
    usage_days: int = Field(
        90, ge=0, description="Days that the record of each request is kept; 0: forever. Hourly totals are always kept."
    )
    audit_days: int = Field(0, ge=0, description="Days that the audit trail is kept; 0: forever")
    fetch_seconds: float = Field(
        30, gt=0, description="Maximum time that a request waits for an adapter's bytes from the store, in seconds"
    )
    cache_bytes: int = Field(20 * 2**30, ge=2**20, description="Size limit of this node's disk cache, in bytes")
    engine: EngineSettings = Field(default_factory=EngineSettings)
    queue: QueueSettings = Field(default_factory=QueueSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    imports: ImportSettings = Field(default_factory=ImportSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are none
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - one file for each secret replaces the folder
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment first, then the files that it names."""
        secrets = secret_setting_names()
        hide_file_names(env_settings, secrets)
        inline = frozenset(name for name, field in _fields(Settings, PREFIX) if _is_secret(field.annotation))
        return init_settings, env_settings, SettingsFiles(settings_cls, os.environ, secrets=secrets, inline=inline)

    @field_validator("metrics_residency")
    @classmethod
    def _behind_a_key(cls, value: bool, info: ValidationInfo) -> bool:
        # Tenants could watch each other's requests.
        if value and not info.data.get("metrics_key_required", True):
            raise ValueError("It needs TENORA_METRICS_KEY_REQUIRED=true: else everyone sees which versions are used")
        return value


PREFIX = "TENORA_"

#: Variables that the command line reads as a client; the server ignores them.
CLIENT_NAMES = frozenset({"TENORA_URL", "TENORA_KEY", "TENORA_PROFILE"})

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
    return tuple(sorted(name for name, _ in _fields(Settings, PREFIX)))


def secret_setting_names() -> frozenset[str]:
    """Return the variables of settings that may hold a secret. With the suffix ``_FILE`` each names a file instead."""
    return _secret_names() - CLIENT_NAMES


def may_hold_secret(name: str) -> bool:
    """Return whether this variable is a secret setting, a URL, which may hold a password, or a group with one of them.

    The variables that only the command line reads count as well: a key, and a URL.
    """
    upper = name.upper()
    return any(upper == secret or secret.startswith(f"{upper}__") for secret in _secret_names())


def check_environment(environ: Mapping[str, str]) -> None:
    """Reject unknown variables with the prefix ``TENORA_``, which pydantic ignores silently.

    Raises:
        UnknownSetting: names each of them and the nearest settings.
    """
    settings = setting_names()
    links = sorted(name for name, value in environ.items() if _is_service_link(name, value, settings))
    complaints = [_SERVICE_LINKS.format(names=", ".join(links))] if links else []
    for name in sorted(environ.keys() - links):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in CLIENT_NAMES or _is_setting(upper, settings):
            continue
        nearest = difflib.get_close_matches(upper, [*settings, CONFIG_FILE, *CLIENT_NAMES], n=3, cutoff=0.6)
        complaints.append(f"{name} is not a setting. {_advice(nearest)}")
    if complaints:
        raise UnknownSetting("\n".join(complaints))


def _advice(nearest: list[str]) -> str:
    return f"Did you mean {' or '.join(nearest)}?" if nearest else "Correct its name or remove it."


def _is_service_link(name: str, value: str, settings: tuple[str, ...]) -> bool:
    """Return whether Kubernetes set this variable, as it does in every pod for a Service ``tenora`` or ``tenora-...``.

    https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    return bool(_SERVICE_LINK.fullmatch(name)) and (name not in settings or bool(_LINK_VALUE.match(value)))


def _is_setting(name: str, settings: tuple[str, ...]) -> bool:
    # A group may be one JSON value (TENORA_ENGINE), and a mapping may be set entry by entry (..._ARGS__KEY).
    group = any(other.startswith(f"{name}__") for other in settings)
    return name in settings or group or name.startswith(_MAPPINGS) or _names_file(name)


def _names_file(name: str) -> bool:
    return name == CONFIG_FILE or (name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in secret_setting_names())


@cache
def _secret_names() -> frozenset[str]:
    fields = _fields(Settings, PREFIX)
    return CLIENT_NAMES.union(name for name, field in fields if name.endswith("_URL") or _is_secret(field.annotation))


def _is_secret(kind: Any) -> bool:
    return kind is SecretStr or any(map(_is_secret, get_args(kind)))


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}", field

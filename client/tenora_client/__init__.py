"""Client of a Tenora server: a typed library and the ``tenora`` command."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from tenora_client._async.client import AsyncClient
    from tenora_client._sync.client import Client
    from tenora_client.answers import FeedEvent
    from tenora_client.errors import (
        AuthenticationError,
        ConfigurationError,
        Conflict,
        ConnectionFailed,
        ForeignAnswer,
        InvalidRequest,
        NotFound,
        PermissionDenied,
        RateLimited,
        Refused,
        ServerError,
        TenoraError,
        UploadRejected,
        VersionMismatch,
    )
    from tenora_client.folders import NoAdapter
    from tenora_client.inference import Generation
    from tenora_client.progress import Progress
    from tenora_client.types import Batch, File

_ERRORS = "tenora_client.errors"
_HOMES = {
    "AsyncClient": "tenora_client._async.client",
    "Batch": "tenora_client.types",
    "Client": "tenora_client._sync.client",
    "FeedEvent": "tenora_client.answers",
    "File": "tenora_client.types",
    "Generation": "tenora_client.inference",
    "NoAdapter": "tenora_client.folders",
    "Progress": "tenora_client.progress",
}

__all__ = [
    "AsyncClient",
    "AuthenticationError",
    "Batch",
    "Client",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "FeedEvent",
    "File",
    "ForeignAnswer",
    "Generation",
    "InvalidRequest",
    "NoAdapter",
    "NotFound",
    "PermissionDenied",
    "Progress",
    "RateLimited",
    "Refused",
    "ServerError",
    "TenoraError",
    "UploadRejected",
    "VersionMismatch",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that the command line starts without what it does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, _ERRORS)), name)


def __dir__() -> list[str]:
    return __all__

"""Namespace ``adapters``."""

from __future__ import annotations

from tenora_client._async.aliases import AsyncAliases
from tenora_client._async.publishing import AsyncPublishing
from tenora_client._async.versions import AsyncVersions


class AsyncAdapters(AsyncPublishing, AsyncVersions, AsyncAliases):
    """Adapters, their versions, aliases and shares.

    ``tenant`` names the owner of the adapter. A platform key needs it; with a tenant's key it is the key's tenant.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

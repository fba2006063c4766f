# Generated from _async/adapters.py by `make client-code`. Change that file instead.
"""Namespace ``adapters``."""

from __future__ import annotations

from tenora_client._sync.aliases import Aliases
from tenora_client._sync.publishing import Publishing
from tenora_client._sync.versions import Versions


class Adapters(Publishing, Versions, Aliases):
    """Adapters, their versions, aliases and shares.

    ``tenant`` names the owner of the adapter. A platform key needs it; with a tenant's key it is the key's tenant.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

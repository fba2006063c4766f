# Generated from _async/resource.py by `make client-code`. Change that file instead.
"""Base of the client's namespaces."""

from __future__ import annotations

from tenora_client._sync.session import Session


class Resource:
    """Namespace of a client, such as ``tenora.adapters``."""

    def __init__(self, session: Session) -> None:
        self._session = session

"""Base of the client's namespaces."""

from __future__ import annotations

from tenora_client._async.session import AsyncSession


class AsyncResource:
    """Namespace of a client, such as ``tenora.adapters``."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

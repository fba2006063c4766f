"""The asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tenora_client._async.adapters import AsyncAdapters
from tenora_client._async.administration import AsyncKeys, AsyncTenants
from tenora_client._async.batches import AsyncBatches
from tenora_client._async.files import AsyncFiles
from tenora_client._async.session import AsyncSession
from tenora_client.answers import FeedEvent
from tenora_client.closing import async_closing
from tenora_client.configuration import resolve
from tenora_client.errors import ConnectionFailed, ServerError
from tenora_client.feeds import SILENCE_S, Resumption
from tenora_client.inference import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    Generation,
    chat_body,
    completion_body,
    generation,
    piece,
)
from tenora_client.models import Model, model_list
from tenora_client.paths import path_of, tenant_path
from tenora_client.reports import report_query, usage_query
from tenora_client.types import (
    AuditRow,
    AuditVerification,
    Deletion,
    Key,
    LimitReport,
    QuotaReport,
    Request,
    RunningCanary,
    ServerFacts,
    SharedAdapter,
    UploadRefusal,
    UsageReport,
    UsageSeries,
)


class AsyncClient:
    """Asynchronous client of one Tenora server with one key.

    ::

        async with AsyncClient("http://127.0.0.1:8000", key="tnr_...") as tenora:
            version = await tenora.adapters.publish("quotes", "out/checkpoint-100")
            print(await tenora.chat("quotes", "How much is sugar?"))

    Args:
        url: address of the server; None: TENORA_URL, else the profile's.
        key: API key; None: TENORA_KEY, else the profile's.
        profile: name of a saved profile; None: TENORA_PROFILE, else the current one.
        retries: repeats of a request that the server or the network did not take.
        timeout_s: seconds without a byte of an answer after which a request fails; None: 600.

    Attributes:
        adapters: adapters, versions, aliases and shares.
        tenants: tenants of the server, for platform keys.
        keys: API keys, for platform keys and keys with the scope ``keys:write``.
        files: inputs and outputs of batches.
        batches: batches of requests.
        url: address of the server.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        profile: str | None = None,
        retries: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        access = resolve(url, key, profile)
        self.url = access.url
        self._session = AsyncSession(access, retries=retries, timeout_s=timeout_s)
        self.adapters = AsyncAdapters(self._session)
        self.tenants = AsyncTenants(self._session)
        self.keys = AsyncKeys(self._session)
        self.files = AsyncFiles(self._session)
        self.batches = AsyncBatches(self._session)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session.access!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._session.close()

    async def server_version(self) -> str | None:
        """Return the release of the server, or None if it does not tell."""
        return await self._session.server_version()

    async def chat(
        self,
        model: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **options: Any,
    ) -> Generation:
        """Answer a chat.

        Args:
            model: adapter, ``adapter:alias``, ``adapter@version``, or empty for the base.
            messages: text of the user, or OpenAI's list of messages.
            system: text of a system message before them.
            options: OpenAI's other fields, such as ``tools`` or ``response_format``.
        """
        options.update(max_tokens=max_tokens, temperature=temperature)
        body, headers = await self._session.send("POST", CHAT_PATH, chat_body(model, messages, system, options))
        return generation(body, headers)

    async def stream_chat(
        self,
        model: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **options: Any,
    ) -> AsyncIterator[str]:
        """Answer a chat piece by piece. Closing the iterator cancels the request."""
        options.update(max_tokens=max_tokens, temperature=temperature, stream=True)
        body = chat_body(model, messages, system, options)
        async with async_closing(self._session.stream(CHAT_PATH, body)) as events:
            async for event in events:
                if text := piece(event):
                    yield text

    async def complete(
        self,
        model: str,
        prompt: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **options: Any,
    ) -> Generation:
        """Complete a prompt."""
        options.update(max_tokens=max_tokens, temperature=temperature)
        body, headers = await self._session.send("POST", COMPLETIONS_PATH, completion_body(model, prompt, options))
        return generation(body, headers)

    async def stream_complete(
        self,
        model: str,
        prompt: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **options: Any,
    ) -> AsyncIterator[str]:
        """Complete a prompt piece by piece. Closing the iterator cancels the request."""
        options.update(max_tokens=max_tokens, temperature=temperature, stream=True)
        body = completion_body(model, prompt, options)
        async with async_closing(self._session.stream(COMPLETIONS_PATH, body)) as events:
            async for event in events:
                if text := piece(event):
                    yield text

    async def models(self) -> list[Model]:
        """Fetch the models that the key may use: the base, adapters, and adapters shared with the tenant."""
        answer, _ = await self._session.send("GET", "/v1/models")
        return model_list(answer)

    async def key(self) -> Key:
        """Fetch the calling key: its tenant, scopes, restrictions and expiry. Its text is not part of it."""
        return await self._session.get(Key, "/v1/key")

    async def server(self) -> ServerFacts:
        """Fetch the server's release, base, device, caps and features."""
        return await self._session.get(ServerFacts, "/v1/server")

    async def limits(self) -> LimitReport:
        """Fetch the limits of the key and its tenant, and what is left of them."""
        return await self._session.get(LimitReport, "/v1/limits")

    async def quota(self) -> QuotaReport:
        """Fetch the quota of the key's tenant, and what it keeps."""
        return await self._session.get(QuotaReport, "/v1/quota")

    async def usage(
        self,
        by: str | Sequence[str] | None = None,
        *,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        tenant: str | None = None,
    ) -> UsageReport:
        """Report usage: of the key's tenant, or with a platform key of all tenants or one.

        Args:
            by: groups: ``key``, ``adapter`` or ``version``, ``hour`` or ``day``, for platform keys also ``tenant``.
            start: time with a zone; None: 30 days before ``end``.
            end: time with a zone; None: now.
            tenant: only this tenant, for platform keys.

        Raises:
            ValueError: a time has no zone.
        """
        query = usage_query(by, start, end, tenant)
        return await self._session.get(UsageReport, await self._path(tenant, "usage"), query)

    async def usage_series(
        self,
        step: str = "1h",
        *,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        key: str | None = None,
        adapter: str | None = None,
        tenant: str | None = None,
    ) -> UsageSeries:
        """Report usage and latencies by time: of the key's tenant, or with a platform key of all tenants or one.

        Args:
            step: width of the points: ``1m``, ``5m``, ``1h`` or ``1d``.
            start: time with a zone; None: an hour, a day, a week or 30 days before ``end``, by the step.
            end: time with a zone; None: now.
            key: only requests with this key, by its id.
            adapter: only requests for this adapter or version, or for the base by its name.
            tenant: only this tenant, for platform keys.

        Raises:
            ValueError: a time has no zone.
        """
        query = report_query(start, end, step=step, key=key, adapter=adapter, tenant=tenant)
        return await self._session.get(UsageSeries, await self._path(tenant, "usage", "series"), query)

    async def requests(
        self,
        *,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        key: str | None = None,
        adapter: str | None = None,
        status: int | None = None,
        failed: bool | None = None,
        cold: bool | None = None,
        tenant: str | None = None,
    ) -> AsyncIterator[Request]:
        """Yield requests, newest first: of the key's tenant, or with a platform key of all tenants or one.

        Args:
            start: time with a zone; None: 30 days before ``end``.
            end: time with a zone; None: now.
            key: only requests with this key, by its id.
            adapter: only requests for this adapter or version, or for the base by its name.
            status: only answers with this status.
            failed: True: only requests without a whole answer; False: only others.
            cold: True: only requests that waited for their adapter to load; False: only others.
            tenant: only this tenant, for platform keys.

        Raises:
            ValueError: a time has no zone.
        """
        query = report_query(
            start, end, key=key, adapter=adapter, status=status, failed=failed, cold=cold, tenant=tenant
        )
        async for request in self._session.items(Request, await self._path(tenant, "requests"), query):
            yield request

    async def canaries(
        self, *, search: str | None = None, sort: str | None = None, tenant: str | None = None
    ) -> AsyncIterator[RunningCanary]:
        """Yield running canaries: of the key's tenant, or with a platform key of all tenants or one.

        Args:
            search: part of ``tenant/adapter:alias``.
            sort: ``created``, ``-created``, ``name`` or ``-name``; None: ``created``.
            tenant: only this tenant, for platform keys.
        """
        query = {"q": search, "sort": sort, "tenant": tenant}
        async for canary in self._session.items(RunningCanary, await self._path(tenant, "canaries"), query):
            yield canary

    def refusals(self, adapter: str | None = None, *, tenant: str | None = None) -> AsyncIterator[UploadRefusal]:
        """Yield the refused uploads of 30 days with their reasons, newest first.

        Args:
            adapter: only uploads for this adapter.
            tenant: owner; None: the key's tenant.
        """
        return self._session.items(UploadRefusal, tenant_path(tenant, "refusals"), {"adapter": adapter})

    def audit(
        self,
        *,
        tenant: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
    ) -> AsyncIterator[AuditRow]:
        """Yield the rows of the audit trail, newest first. Needs a platform key.

        Args:
            tenant: only changes of this tenant's objects.
            actor: only changes by this key, by its id, or by ``cli``, ``engine`` or ``canary``.
            action: only this action, or with a dot at its end all that begin so: ``alias.``.
            subject: only changes of the object with this name, such as ``pricing@3``.
            start: time with a zone; None: the oldest row.
            end: time with a zone; None: now.

        Raises:
            ValueError: a time has no zone.
        """
        query = report_query(start, end, tenant=tenant, actor=actor, action=action, subject=subject)
        return self._session.items(AuditRow, path_of("admin", "audit"), query)

    async def verify_audit(self) -> AuditVerification:
        """Let the server compute every seal of the audit trail again. Needs a platform key."""
        return await self._session.get(AuditVerification, path_of("admin", "audit", "verification"))

    def shared(self, *, tenant: str | None = None) -> AsyncIterator[SharedAdapter]:
        """Yield the adapters that other tenants share with the key's tenant, or with this one."""
        return self._session.items(SharedAdapter, tenant_path(tenant, "shared"))

    def deletions(self, *, tenant: str | None = None) -> AsyncIterator[Deletion]:
        """Yield the reports of deletions of the key's tenant, or of this one, newest first."""
        return self._session.items(Deletion, tenant_path(tenant, "deletions"))

    async def deletion(self, deletion_id: str, *, tenant: str | None = None) -> Deletion:
        """Fetch the report of a deletion: which copies were verified as gone."""
        return await self._session.get(Deletion, tenant_path(tenant, "deletions", deletion_id))

    async def events(
        self, *, after: int | None = None, tenant: str | None = None, reconnect: bool = True
    ) -> AsyncIterator[FeedEvent]:
        """Follow the events of the tenant's adapters, or with a platform key all events.

        Args:
            after: id of the event after which to begin; None: with the next event.
            tenant: only this tenant, for platform keys.
            reconnect: resume after the last event when the connection is lost. If false, the iterator ends with
                the feed.
        """
        path = await self._path(tenant, "events") + (f"?tenant={quote(tenant)}" if tenant else "")
        feed = Resumption(after)
        while True:
            try:
                async with async_closing(self._session.feed(path, feed.after, SILENCE_S)) as received:
                    async for event in received:
                        if feed.note(event):
                            yield event
            except (ConnectionFailed, ServerError):
                if not (reconnect and feed.reached):
                    raise
            if not reconnect:
                return
            await asyncio.sleep(feed.pause_s())

    async def _path(self, tenant: str | None, *segments: str) -> str:
        """Return the path for the key's tenant, or with a platform key that for all tenants or one."""
        platform = tenant is not None or await self._session.is_platform()
        return path_of("admin" if platform else "v1", *segments)

"""Preflight: the upload gate for a config and the header of the weights. Nothing is stored.

The header has every name, dtype and shape, so all checks run but those of the values, and those of the engine.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import InvalidName, Reason
from adapters.identity import parse_adapter_slug
from adapters.strict_json import parse_object
from adapters.validation import Summary
from adapters.weights import LENGTH_BYTES, MAX_HEADER_BYTES
from app.database import quotas
from app.database.session import Database
from app.domain.access import Caller
from app.domain.errors import InvalidRequest
from app.domain.quotas import Usage
from app.served_base import ServedBase
from app.services.catalog.version_warnings import warnings_of_manifest
from app.services.common.lookups import tenant_or_404
from app.services.common.quotas import breaches
from app.services.limits.service import LimitService
from app.services.publishing.validator import Validator
from app.settings import LimitSettings
from app.support.spool import Upload

_FIELDS = ("weights_bytes", "adapter", "files")
_MAX_FILES, _MAX_FILE_NAME = 1000, 255
_MAX_BYTES = 2**63 - 1

#: Checks that an upload passes and that a preflight leaves out.
UNCHECKED = (
    "Whether all values of the tensors are finite.",
    "Whether a saved head equals the base's.",
    "Whether the version answers on the engine, and differs from the base (the smoke check).",
)


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """Options of a preflight.

    Attributes:
        weights_bytes: size of the whole weights file.
        adapter: name under which the version would be published; None: not known yet.
        files: names of other files in the folder.
    """

    weights_bytes: int
    adapter: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preflight:
    """Outcome of a preflight: a summary, or at least one reason.

    Attributes:
        summary: summary of the version; None if an upload would be refused.
        reasons: all of them, as an upload's refusal has them.
        warnings: sentences about settings without effect, and about the base.
        size_bytes: size of both files.
        ignored: names of the folder's files that are not part of a version, sorted.
    """

    summary: Summary | None
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]
    size_bytes: int
    ignored: tuple[str, ...]


def read_preflight_options(raw: Mapping[str, Any]) -> PreflightOptions:
    """Check the ``options`` of a preflight.

    Raises:
        InvalidRequest
    """
    for name in raw:
        if name not in _FIELDS:
            raise _invalid(str(name)[:80], f"is unknown. The fields are {', '.join(_FIELDS)}.")
    size, adapter, files = raw.get("weights_bytes"), raw.get("adapter"), raw.get("files", [])
    if type(size) is not int or not 0 <= size <= _MAX_BYTES:
        raise _invalid("weights_bytes", f"must be the size of the whole {WEIGHTS_NAME} in bytes, a whole number.")
    if adapter is not None and not isinstance(adapter, str):
        raise _invalid("adapter", "must be the name of an adapter, or null.")
    if not isinstance(files, list) or len(files) > _MAX_FILES or not all(map(_is_file_name, files)):
        raise _invalid("files", f"must be a list of up to {_MAX_FILES} names of up to {_MAX_FILE_NAME} characters.")
    return PreflightOptions(size, adapter, tuple(files))


class PreflightService:
    """Use case of checking an adapter before its upload. It counts against limits of requests."""

    def __init__(
        self, database: Database, base: ServedBase, validator: Validator, limiting: LimitService, limits: LimitSettings
    ) -> None:
        self._database, self._base, self._validator = database, base, validator
        self._limiting, self._limits = limiting, limits

    async def check(
        self, caller: Caller, request_id: str, tenant: str, head: Upload, options: PreflightOptions
    ) -> Preflight:
        """Run the upload gate on a config and the beginning of the weights.

        Args:
            head: the config, and the beginning of the weights up to the end of their header.

        Raises:
            InvalidRequest: the beginning is too short, or longer than the whole file.
            LimitExceeded, NotFound, RegistryUnavailable
            ValidationFailed: the validator was stopped.
            DiskFull, StoreUnavailable
        """
        async with self._limiting.without_tokens(caller, request_id):
            await asyncio.to_thread(_check_beginning, head.weights.path, head.weights.size, options.weights_bytes)
            verdict = await self._validator.validate_header(head, options.weights_bytes)
            reasons = [*self._size_reasons(options), *self._name_reasons(options), *verdict.reasons]
            size = head.config.size + options.weights_bytes
            added = Usage(versions=1, bytes=size, rank=verdict.summary.rank if verdict.summary else 0)
            reasons += await self._quota_reasons(tenant, options.adapter, added)
            warnings = [warning.message for warning in verdict.warnings]
            if verdict.summary:
                manifest = parse_object(await asyncio.to_thread(head.config.path.read_bytes))
                warnings += warnings_of_manifest(manifest, self._base)
        ignored = sorted(set(options.files) - {CONFIG_NAME, WEIGHTS_NAME})
        summary = None if reasons else verdict.summary
        return Preflight(summary, tuple(reasons), tuple(warnings), size, tuple(ignored))

    def _size_reasons(self, options: PreflightOptions) -> list[Reason]:
        most = self._limits.weights_bytes
        if options.weights_bytes <= most:
            return []
        sentence = f"{WEIGHTS_NAME} is larger than the limit of {most} bytes. Train with a smaller rank."
        return [Reason("too_large", WEIGHTS_NAME, f"{options.weights_bytes} bytes", f"{most} bytes", sentence)]

    def _name_reasons(self, options: PreflightOptions) -> list[Reason]:
        if options.adapter is None:
            return []
        try:
            parse_adapter_slug(options.adapter, base_model=self._base.name)
        except InvalidName as error:
            return [Reason("invalid_name", error.field, error.found, error.allowed, str(error))]
        return []

    async def _quota_reasons(self, tenant: str, adapter: str | None, added: Usage) -> list[Reason]:
        """Check the quota, which an upload checks again in its transaction."""
        async with self._database.read() as connection:
            owner = await tenant_or_404(connection, tenant)
            used = await quotas.usage(connection, owner.id)
            if adapter is not None and not await quotas.has_adapter(connection, owner.id, adapter):
                added = replace(added, adapters=1)
        return [
            Reason(
                "quota_exceeded",
                f"quota.{breach.field}",
                str(breach.found),
                str(breach.allowed),
                f"The tenant's quota would be exceeded: {breach.field} would be {breach.found}, and the limit is "
                f"{breach.allowed}. Use less, or ask the platform team for more.",
            )
            for breach in breaches(owner.quota, used, added)
        ]


def _check_beginning(weights: Path, sent: int, whole: int) -> None:
    """Check that the part holds the file's header as a whole. Blocks.

    Raises:
        InvalidRequest
    """
    if sent > whole:
        raise _invalid("weights_bytes", f"is {whole}, but the part {WEIGHTS_NAME} has {sent} bytes already.")
    with weights.open("rb") as file:
        prefix = file.read(LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    needed = LENGTH_BYTES if len(prefix) < LENGTH_BYTES or length > MAX_HEADER_BYTES else LENGTH_BYTES + length
    if sent < needed <= whole:
        raise InvalidRequest(
            f"The part {WEIGHTS_NAME} has {sent} bytes, but the file's header ends after {needed}. Send these bytes.",
            param=WEIGHTS_NAME,
        )


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_FILE_NAME


def _invalid(field: str, words: str) -> InvalidRequest:
    return InvalidRequest(f"options.{field} {words}", param=f"options.{field}")

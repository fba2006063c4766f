"""Multipart parser (RFC 7578) that spools a version's two files, or an archive of them, to disk as they arrive.

Starlette's form parser would write every file twice and enforce no caps. This parser keeps at most two batches of a
file in memory and stops at each file's cap. RequestMiddleware caps the whole body.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import AdapterRejected, Reason, grouped
from adapters.sandbox import inspect_in_child
from adapters.strict_json import parse_object
from adapters.weights import LENGTH_BYTES, MAX_HEADER_BYTES
from app.api.form_parts import FormParts, MalformedForm, boundary_of
from app.domain.errors import InvalidRequest, TooLarge
from app.services.publishing.archives import archive_bytes, unpack_upload
from app.settings import LimitSettings
from app.support.spool import SpooledFile, SpoolWriter, Upload

ARCHIVE_NAME = "archive"
OPTIONS_NAME = "options"

#: Cap of the options in bytes. Most of it is for a card and a chat template, escaped as JSON.
OPTIONS_BYTES = 512 * 1024

#: Cap of the beginning of a weights file in bytes: the longest header, and its length in front of it.
HEAD_BYTES = LENGTH_BYTES + MAX_HEADER_BYTES

_ALLOWED_PARTS = f"the parts {CONFIG_NAME} and {WEIGHTS_NAME}, or {ARCHIVE_NAME}; and {OPTIONS_NAME}, if need be"
_ALLOWED_IN_HEAD = f"the parts {CONFIG_NAME}, {WEIGHTS_NAME} (its beginning) and {OPTIONS_NAME}"

_PICKLED = frozenset({"adapter_model.bin", "adapter_model.pt", "adapter_model.pth"})

#: If more bytes than this are still to come, an invalid config is refused at once. Smaller bodies are read whole, so
#: that all reasons are reported.
EARLY_BYTES = 4 * 2**20

_MAX_PARTS = 16
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Received:
    """Received upload.

    Attributes:
        kind: kind of the provenance's source: ``upload`` or ``archive``.
        options: JSON object of the options part; not validated further.
    """

    upload: Upload
    kind: str = "upload"
    options: dict[str, Any] = field(default_factory=dict)


async def receive_upload(
    stream: AsyncIterator[bytes], content_type: str, folder: Path, limits: LimitSettings, *, length: int | None = None
) -> Received:
    """Write the two files of an upload into ``folder``, ignoring the client's file names.

    Args:
        length: announced length of the whole body in bytes, if any.

    Raises:
        AdapterRejected: the body is not multipart, parts are missing, unknown or duplicate, or the archive is not
            one of a PEFT folder; reports every kind of reason at once. Also: a large body starts with an invalid
            config; the rest of it is not read then.
        TooLarge: a file exceeds its cap.
        InvalidRequest: the client was silent for too long, or the options are not a JSON object.
        ValidationFailed: the archive took too long to unpack.
        DiskFull, StoreUnavailable: the files could not be written.
    """
    caps = {
        CONFIG_NAME: limits.config_bytes,
        WEIGHTS_NAME: limits.weights_bytes,
        ARCHIVE_NAME: archive_bytes(limits),
        OPTIONS_NAME: OPTIONS_BYTES,
    }
    files = await _receive_files(stream, content_type, folder, limits, caps, length)
    options = await _options_of(files)
    if ARCHIVE_NAME in files:
        upload = await unpack_upload(files[ARCHIVE_NAME].path, folder, limits)
        return Received(upload, "archive", options)
    return Received(Upload(config=files[CONFIG_NAME], weights=files[WEIGHTS_NAME]), "upload", options)


async def receive_head(
    stream: AsyncIterator[bytes], content_type: str, folder: Path, limits: LimitSettings
) -> Received:
    """Write the config and the beginning of the weights, whose header is to be checked, into ``folder``.

    Raises:
        AdapterRejected: the body is not multipart, or parts are missing, unknown or duplicate.
        TooLarge: a part exceeds its cap.
        InvalidRequest: the client was silent for too long, or the options are not a JSON object.
        DiskFull, StoreUnavailable: the files could not be written.
    """
    caps = {CONFIG_NAME: limits.config_bytes, WEIGHTS_NAME: HEAD_BYTES, OPTIONS_NAME: OPTIONS_BYTES}
    files = await _receive_files(stream, content_type, folder, limits, caps, None)
    upload = Upload(config=files[CONFIG_NAME], weights=files[WEIGHTS_NAME])
    return Received(upload, options=await _options_of(files))


async def _receive_files(
    stream: AsyncIterator[bytes],
    content_type: str,
    folder: Path,
    limits: LimitSettings,
    caps: Mapping[str, int],
    length: int | None,
) -> dict[str, SpooledFile]:
    received, is_checked = 0, False
    form = _UploadForm(_boundary(content_type), folder, caps)
    try:
        async with asyncio.timeout(limits.upload_idle_seconds) as idle:
            async for chunk in stream:
                form.feed(chunk)
                await form.flush_due()
                received += len(chunk)
                if not is_checked and form.has_config and _much_to_come(received, length):
                    is_checked = True
                    await _check_config(await form.config(), limits)
                idle.reschedule(asyncio.get_running_loop().time() + limits.upload_idle_seconds)
        return await form.finish()
    except TimeoutError:
        raise InvalidRequest(
            f"No bytes of the body arrived for {limits.upload_idle_seconds:g} s. Send the upload again without pauses."
        ) from None
    finally:
        await form.close()


def _much_to_come(received: int, length: int | None) -> bool:
    """Return whether much of the body is still to come, judged by its announced length or the bytes received."""
    return (received if length is None else length - received) > EARLY_BYTES


async def _check_config(config: SpooledFile, limits: LimitSettings) -> None:
    reasons = await asyncio.to_thread(
        inspect_in_child,
        config.path,
        cpu_seconds=limits.validation_seconds,
        address_bytes=limits.validation_bytes,
    )
    if reasons:
        raise AdapterRejected(reasons, unread=True)


async def _options_of(files: Mapping[str, SpooledFile]) -> dict[str, Any]:
    if OPTIONS_NAME not in files:
        return {}
    return _read_options(await asyncio.to_thread(files[OPTIONS_NAME].path.read_bytes))


def _read_options(raw: bytes) -> dict[str, Any]:
    try:
        return parse_object(raw)
    except ValueError as error:
        raise InvalidRequest(
            f"{OPTIONS_NAME} is not one JSON object in UTF-8 ({str(error)[:_SHOWN]}).", param=OPTIONS_NAME
        ) from None


class _UploadForm(FormParts):
    """Parser callbacks, with one writer for each file.

    Args:
        caps: maximum size in bytes of each part, by its name.
    """

    def __init__(self, boundary: bytes, folder: Path, caps: Mapping[str, int]) -> None:
        self._folder, self._caps = folder, caps
        self._allowed = _ALLOWED_PARTS if ARCHIVE_NAME in caps else _ALLOWED_IN_HEAD
        self._writers: dict[str, SpoolWriter] = {}
        self._current: str | None = None
        self._parts = 0
        self._reasons: list[Reason] = []
        self._config: SpooledFile | None = None
        self.has_config = False
        try:
            super().__init__(boundary)
        except MalformedForm:
            raise AdapterRejected((_not_multipart("a boundary that is too long"),)) from None

    def feed(self, chunk: bytes) -> None:
        """Parse one chunk of the body.

        Raises:
            AdapterRejected, TooLarge
        """
        try:
            self.parse(chunk)
        except MalformedForm:
            raise AdapterRejected(grouped((*self._reasons, _malformed("something else", self._allowed)))) from None

    async def flush_due(self) -> None:
        for writer in self._writers.values():
            if writer.due:
                await writer.flush()

    async def finish(self) -> dict[str, SpooledFile]:
        """Close and return the files, or raise AdapterRejected with everything that is wrong with the form."""
        if not self.ended:
            self._reasons.append(_malformed("no closing boundary", self._allowed))
        for name in (CONFIG_NAME, WEIGHTS_NAME):
            if name == WEIGHTS_NAME and any(reason.code == "pickle_format" for reason in self._reasons):
                continue
            if ARCHIVE_NAME not in self._writers and name not in self._writers:
                self._reasons.append(Reason("missing_part", name, "nothing", "one part of this name"))
            elif ARCHIVE_NAME in self._writers and name in self._writers:
                found = f"a part beside the part {ARCHIVE_NAME}"
                self._reasons.append(Reason("unexpected_part", name, found, self._allowed))
        if self._reasons:
            raise AdapterRejected(grouped(self._reasons))
        files = {CONFIG_NAME: self._config} if self._config else {}
        return files | {name: await writer.finish() for name, writer in self._writers.items() if name not in files}

    async def config(self) -> SpooledFile:
        """Close and return the config's file, whose part is complete."""
        self._config = await self._writers[CONFIG_NAME].finish()
        return self._config

    async def close(self) -> None:
        """Abandon all unfinished files."""
        for writer in self._writers.values():
            await writer.abandon()

    def part_began(self, name: str, filename: str) -> None:  # noqa: ARG002 - the name of the part decides
        self._parts += 1
        if self._parts > _MAX_PARTS:
            self._reasons.append(Reason("too_many_parts", "body", f"more than {_MAX_PARTS} parts", self._allowed))
            raise AdapterRejected(grouped(self._reasons))
        self._current = None
        if name in _PICKLED:
            found, allowed = "a pickle, which runs code when read", "the safetensors format"
            self._reasons.append(Reason("pickle_format", name, found, allowed))
        elif name not in self._caps:
            self._reasons.append(Reason("unknown_part", "body", repr(name[:_SHOWN]), self._allowed))
        elif name in self._writers:
            self._reasons.append(Reason("duplicate_part", name, "another part of this name", "one part of this name"))
        else:
            self._current = name
            self._writers[name] = SpoolWriter(self._folder / name)

    def part_data(self, data: memoryview) -> None:
        if self._current is None:
            return
        writer, cap = self._writers[self._current], self._caps[self._current]
        if writer.size + len(data) > cap:
            raise TooLarge(f"{self._current} is larger than the limit of {cap} bytes.", param=self._current)
        writer.add(data)

    def part_ended(self) -> None:
        self.has_config = self.has_config or self._current == CONFIG_NAME


def _boundary(content_type: str) -> bytes:
    boundary = boundary_of(content_type)
    if not boundary:
        raise AdapterRejected((_not_multipart(repr(content_type[:_SHOWN])),))
    return boundary


def _not_multipart(found: str) -> Reason:
    return Reason("not_multipart", "content-type", found, "multipart/form-data with a boundary")


def _malformed(found: str, allowed: str) -> Reason:
    return Reason("malformed_multipart", "body", found, f"multipart/form-data with {allowed}")

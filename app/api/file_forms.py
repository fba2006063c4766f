"""Forms with one file, as OpenAI's clients send them to ``/v1/files`` and to the parts of an upload."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.api.form_parts import FormParts, MalformedForm, boundary_of
from app.domain.errors import InvalidRequest, TenoraError, TooLarge
from app.domain.files import UNNAMED
from app.support.spool import SpooledFile, SpoolWriter

#: Maximum size of a text field in bytes.
_FIELD_BYTES = 1024
_MAX_PARTS = 16
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class FileForm:
    """Description of a form.

    Attributes:
        file: name of the part with the file.
        fields: names of the text fields that the form may have.
        most_bytes: maximum size of the file.
        too_large: error for a larger file.
        idle_s: longest wait for more bytes, in seconds.
        check: called before the file is read with the text fields that precede it; raises an error for a wrong one.
    """

    file: str
    fields: frozenset[str]
    most_bytes: int
    too_large: TenoraError
    idle_s: float
    check: Callable[[Mapping[str, str]], object] = lambda _fields: None

    @property
    def expected(self) -> str:
        names = ", ".join(sorted(self.fields))
        return f"a file in the field {self.file}" + (f", and the fields {names}" if names else "")


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A received form.

    Attributes:
        filename: name that the client gives; ``file`` if it gives none.
    """

    file: SpooledFile
    filename: str
    fields: Mapping[str, str]


async def receive_file(stream: AsyncIterator[bytes], content_type: str, folder: Path, form: FileForm) -> ReceivedFile:
    """Write the file of a form into ``folder``, without its name.

    Raises:
        InvalidRequest: the body is not such a form, the file is missing or empty, or the client paused too long.
        TenoraError: the error of ``form`` for a file that is too large; it is raised as soon as the file exceeds it.
        TooLarge: a text field is too long.
        DiskFull, StoreUnavailable
    """
    boundary = boundary_of(content_type)
    if not boundary:
        raise InvalidRequest(
            f"content-type is {content_type[:_SHOWN]!r}, but must be multipart/form-data with a boundary. "
            f"Send {form.expected}.",
            param="content-type",
        )
    try:
        parts = _Parts(boundary, folder, form)
    except MalformedForm:
        raise _malformed(form) from None
    try:
        async with asyncio.timeout(form.idle_s) as idle:
            async for chunk in stream:
                parts.parse(chunk)
                if parts.writer is not None and parts.writer.due:
                    await parts.writer.flush()
                idle.reschedule(asyncio.get_running_loop().time() + form.idle_s)
        return await parts.finish()
    except MalformedForm:
        raise _malformed(form) from None
    except TimeoutError:
        raise InvalidRequest(
            f"No bytes of the body arrived for {form.idle_s:g} s. Send the file again without pauses.", param="body"
        ) from None
    finally:
        if parts.writer is not None:
            await parts.writer.abandon()


class _Parts(FormParts):
    def __init__(self, boundary: bytes, folder: Path, form: FileForm) -> None:
        super().__init__(boundary)
        self._folder, self._form = folder, form
        self._fields: dict[str, bytearray] = {}
        self._field: bytearray | None = None
        self._name, self._filename, self._count = "", "", 0
        self.writer: SpoolWriter | None = None

    def part_began(self, name: str, filename: str) -> None:
        self._count += 1
        self._name = name
        if name in self._fields or (name == self._form.file and self.writer is not None):
            raise InvalidRequest(f"The form has two fields {name!r}. Send each field once.", param=name)
        if self._count > _MAX_PARTS or (name != self._form.file and name not in self._form.fields):
            raise InvalidRequest(
                f"The form has the field {name[:_SHOWN]!r}, which is not supported. Send {self._form.expected}.",
                param=name[:_SHOWN],
            )
        if name != self._form.file:
            self._field = self._fields[name] = bytearray()
            return
        # OpenAI's clients send the fields first, so most mistakes show before the file is read.
        self._form.check(self._text())
        self._field, self._filename = None, filename
        self.writer = SpoolWriter(self._folder / "received")

    def part_data(self, data: memoryview) -> None:
        if self._field is not None:
            if len(self._field) + len(data) > _FIELD_BYTES:
                message = f"{self._name} is longer than the limit of {_FIELD_BYTES} bytes."
                raise TooLarge(message, param=self._name)
            self._field += data
        elif self.writer is not None:
            if self.writer.size + len(data) > self._form.most_bytes:
                raise self._form.too_large
            self.writer.add(data)

    def part_ended(self) -> None:
        self._field = None

    async def finish(self) -> ReceivedFile:
        """Close and return the file."""
        if not self.ended:
            raise MalformedForm
        if self.writer is None:
            raise InvalidRequest(f"The form has no file. Send {self._form.expected}.", param=self._form.file)
        if not self.writer.size:
            raise InvalidRequest("The file is empty. Send a file with content.", param=self._form.file)
        return ReceivedFile(await self.writer.finish(), self._filename or UNNAMED, self._text())

    def _text(self) -> dict[str, str]:
        return {name: bytes(value).decode("utf-8", "replace") for name, value in self._fields.items()}


def _malformed(form: FileForm) -> InvalidRequest:
    return InvalidRequest(f"The body is not valid multipart/form-data. Send {form.expected}.", param="body")

"""Readers under test: each must give a verdict or one of its declared errors for every input."""

import asyncio
import gzip
import hashlib
import io
import random
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar
from unittest import mock

from safetensors import deserialize

from adapters.archive import CONFIG_NAME, WEIGHTS_NAME, unpack
from adapters.errors import AdapterRejected, Reason
from adapters.validation import validate
from app.api.multipart import receive_upload
from app.domain.errors import InvalidRequest, TooLarge
from app.services.publishing import archives
from app.settings import LimitSettings
from tests.fuzz.adapter_inputs import GEOMETRY, MAX_RANK, adapter_input
from tests.fuzz.archive_inputs import archive_input
from tests.fuzz.form_inputs import form_input

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_MAX_REASONS = 50
_MAX_WORDS = 400
_MAX_MESSAGE = 1500
_PATTERN_SECONDS = 0.25


class Target(Protocol):
    """One reader."""

    name: str

    def make(self, rng: random.Random) -> tuple[bytes, ...]:
        """Generate an input."""

    def prepare(self, data: tuple[bytes, ...], folder: Path) -> None:
        """Write the files that the reader reads."""

    def close(self) -> None:
        """Release the target's resources."""

    def read(self, data: tuple[bytes, ...], folder: Path) -> str:
        """Run the reader and return the verdict as one word.

        Raises:
            AssertionError: a verdict that cannot be right.
            Exception: an error that the reader does not declare.
        """


class AdapterTarget(Target):
    """``adapters.validation.validate``: the manifest's reader and the safetensors header's."""

    name = "adapter"

    def make(self, rng: random.Random) -> tuple[bytes, ...]:
        return adapter_input(rng)

    def prepare(self, data: tuple[bytes, ...], folder: Path) -> None:
        (folder / CONFIG_NAME).write_bytes(data[0])
        (folder / WEIGHTS_NAME).write_bytes(data[1])

    def read(self, data: tuple[bytes, ...], folder: Path) -> str:
        # Regular expressions have a separate time limit, above that of the fuzzer.
        verdict = validate(
            folder / CONFIG_NAME, folder / WEIGHTS_NAME, GEOMETRY, MAX_RANK, pattern_seconds=_PATTERN_SECONDS
        )
        if verdict.summary is None:
            return check_reasons(verdict.reasons)
        assert verdict.reasons == ()
        # The engine's safetensors library must read the file too, and find the same.
        found = sum(len(tensor["data"]) for _, tensor in deserialize(data[1]))
        assert found > 0
        return "accepted"


class ArchiveTarget(Target):
    """``adapters.archive.unpack``."""

    name = "archive"

    def __init__(self) -> None:
        self._caps = {"config_bytes": 2**16, "weights_bytes": 2**22}

    def make(self, rng: random.Random) -> tuple[bytes, ...]:
        return archive_input(rng)

    def prepare(self, data: tuple[bytes, ...], folder: Path) -> None:
        (folder / "archive").write_bytes(data[0])

    def read(self, data: tuple[bytes, ...], folder: Path) -> str:
        try:
            files = unpack(folder / "archive", folder, **self._caps)
        except AdapterRejected as error:
            assert [path.name for path in folder.iterdir()] == ["archive"]
            return check_reasons(error.reasons)
        assert sorted(path.name for path in folder.iterdir()) == [CONFIG_NAME, WEIGHTS_NAME, "archive"]
        # Python's own readers reject fields that are irrelevant here, such as times, and stop there.
        theirs = _read_zip(data[0]) if data[0].startswith(b"PK") else _read_tar(data[0])
        for name, file in files.items():
            found = file.path.read_bytes()
            assert (file.digest, file.size) == (hashlib.sha256(found).hexdigest(), len(found))
            assert theirs.get(name, found) == found, name
        return "accepted"


class FormTarget(Target):
    """``app.api.multipart.receive_upload``; archives are unpacked in this process instead of a child."""

    name = "form"

    def __init__(self) -> None:
        self._limits = LimitSettings(config_bytes=2048, weights_bytes=8192)
        self._loop = asyncio.new_event_loop()
        # Threads would only slow this down: nothing else runs on this loop.
        self._loop.set_default_executor(_Inline())

    def close(self) -> None:
        self._loop.close()

    def make(self, rng: random.Random) -> tuple[bytes, ...]:
        content_type, body = form_input(rng)
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((0, 0, 1, 3, 40))))
        return content_type, *(body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True))

    def read(self, data: tuple[bytes, ...], folder: Path) -> str:
        content_type = data[0].decode("latin-1")
        work = receive_upload(_stream(data[1:]), content_type, folder, self._limits)
        try:
            with mock.patch.object(archives, "unpack_in_child", _unpack_here):
                received = self._loop.run_until_complete(work)
        except AdapterRejected as error:
            return check_reasons(error.reasons)
        except (TooLarge, InvalidRequest) as error:
            _check_words(error.message)
            return type(error).__name__
        for name, file in ((CONFIG_NAME, received.upload.config), (WEIGHTS_NAME, received.upload.weights)):
            found = (folder / name).read_bytes()
            assert (file.digest, file.size) == (hashlib.sha256(found).hexdigest(), len(found))
        return f"accepted {received.kind}"


def check_reasons(reasons: Iterable[Reason]) -> str:
    """Check that all reasons are fit to be shown to a client, and return the first reason's code."""
    reasons = tuple(reasons)
    assert 1 <= len(reasons) <= _MAX_REASONS
    for reason in reasons:
        assert reason.code.isidentifier()
        assert reason.count >= 1
        for words in (reason.field, reason.found, reason.allowed, *reason.examples):
            _check_words(words)
        _check_words(reason.message, _MAX_MESSAGE)
    return reasons[0].code


def _check_words(words: str, most: int = _MAX_WORDS) -> None:
    assert 0 < len(words) <= most, words
    assert words.isprintable(), words


async def _stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def _unpack_here(archive: Path, folder: Path, *, config_bytes: int, weights_bytes: int, **_: float) -> Any:
    return unpack(archive, folder, config_bytes=config_bytes, weights_bytes=weights_bytes)


class _Inline(ThreadPoolExecutor):
    """Executor that runs work synchronously at submission; no thread ever starts."""

    def submit(
        self, work: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        done: Future[Result] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            done.set_exception(error)
        return done


def _read_zip(raw: bytes) -> dict[str, bytes]:
    with suppress(NotImplementedError), zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name: archive.read(path) for name, path in _shallowest(archive.namelist()).items()}
    return {}


def _read_tar(raw: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    unpacked = gzip.decompress(raw)
    if _has_gnu_times(unpacked):
        return {}
    with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
        for info in archive:
            if _is_kept(info.name) and (file := archive.extractfile(info)):
                found[info.name] = file.read()
        if unpacked[archive.offset : archive.offset + 512].strip(b"\0"):
            return {}  # it stopped at a header that it rejects, and may have missed the shallowest folder
        return {name: found[path] for name, path in _shallowest(found).items()}
    return {}


def _has_gnu_times(raw: bytes) -> bool:
    """Return whether an old GNU header has times, which Python's reader takes for the path's prefix."""
    blocks = (raw[start : start + 512] for start in range(0, len(raw), 512))
    return any(block[257:265] == b"ustar  \0" and block[345:500].strip(b"\0") for block in blocks)


def _shallowest(paths: Iterable[str]) -> dict[str, str]:
    """Return the paths of the two files in the shallowest folder that has both, by name; empty if there is none."""
    folders: dict[str, dict[str, str]] = {}
    for path in filter(_is_kept, paths):
        folder, _, name = path.removeprefix("./").rpartition("/")
        folders.setdefault(folder, {})[name] = path
    whole = [folder for folder, files in folders.items() if len(files) == 2]
    return folders[min(whole, key=lambda folder: len(folder.split("/")) if folder else 0)] if whole else {}


def _is_kept(name: str) -> bool:
    return name.rpartition("/")[2] in {CONFIG_NAME, WEIGHTS_NAME} and "__MACOSX" not in name.split("/")

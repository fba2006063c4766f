"""Validation of announced uploads: file names, sizes and part layout."""

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.stores.base import is_digest
from adapters.stores.staging import MAX_PARTS
from app.domain.errors import InvalidRequest, TooLarge
from app.domain.uploads import ARCHIVE, MAX_PART_BYTES, UploadFile, chosen_part_bytes
from app.services.publishing.archives import archive_bytes
from app.settings import LimitSettings

_PICKLED = (".bin", ".pt", ".pth")
_ALLOWED = f"{CONFIG_NAME} and {WEIGHTS_NAME}, or {ARCHIVE}"


@dataclass(frozen=True, slots=True)
class Announced:
    """A file as its sender announces it: size in bytes and SHA-256 (hex)."""

    size: int
    sha256: str


def checked_files(
    files: Mapping[str, Announced], part_bytes: int | None, least_part_bytes: int, limits: LimitSettings
) -> dict[str, UploadFile]:
    """Validate the announced files and choose the size of their parts.

    Args:
        part_bytes: requested size of a part in bytes; None: chosen for each file.
        least_part_bytes: smallest part that the store accepts, in bytes.

    Raises:
        InvalidRequest: other files than those of an adapter, an empty file, a malformed digest, or an unsuitable
            part size.
        TooLarge: a file exceeds its size limit.
    """
    if set(files) not in ({CONFIG_NAME, WEIGHTS_NAME}, {ARCHIVE}):
        names = ", ".join(sorted(files))[:200] or "nothing"
        if any(name.endswith(_PICKLED) for name in files):
            raise InvalidRequest(
                f"files names {names}. A .bin, .pt or .pth file is a pickle, which can run code when it is read. "
                "Push its folder with `tenora adapters push FOLDER --adapter NAME --convert`.",
                param="files",
            )
        raise InvalidRequest(f"files names {names}, but must name {_ALLOWED}.", param="files")
    if part_bytes is not None and not least_part_bytes <= part_bytes <= MAX_PART_BYTES:
        message = f"part_bytes is {part_bytes}, but must be {least_part_bytes} to {MAX_PART_BYTES}."
        raise InvalidRequest(message, param="part_bytes")
    caps = {
        CONFIG_NAME: limits.config_bytes,
        WEIGHTS_NAME: limits.weights_bytes,
        ARCHIVE: archive_bytes(limits),
    }
    return {name: _checked(name, file, caps[name], part_bytes, least_part_bytes) for name, file in files.items()}


def size_of_part(name: str, file: UploadFile, number: int) -> int:
    """Return the size of a part in bytes.

    Raises:
        InvalidRequest: the file has no part of this number.
    """
    if not 1 <= number <= file.parts:
        raise InvalidRequest(f"part is {number}, but must be 1 to {file.parts} for {name}.", param="part")
    return file.part_sizes[number - 1]


def _checked(name: str, file: Announced, cap: int, part_bytes: int | None, least: int) -> UploadFile:
    if not is_digest(file.sha256):
        raise InvalidRequest(
            f"The sha256 of {name} is {file.sha256[:80]!r}, but must be 64 lower-case hex digits.",
            param=f"files.{name}",
        )
    if file.size < 1:
        raise InvalidRequest(f"{name} has {file.size} bytes, but must have at least 1.", param=f"files.{name}")
    if file.size > cap:
        raise TooLarge(f"{name} has {file.size} bytes; the limit is {cap}.", param=name)
    checked = UploadFile(file.size, file.sha256, part_bytes or chosen_part_bytes(file.size, least))
    if checked.parts > MAX_PARTS:
        raise InvalidRequest(
            f"part_bytes is {checked.part_bytes}, which makes {checked.parts} parts of {name}. "
            f"The limit is {MAX_PARTS} parts. Choose larger parts.",
            param="part_bytes",
        )
    return checked

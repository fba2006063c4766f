"""Unpack the two files of a PEFT folder from an untrusted ``.tar.gz`` or ``.zip``.

Names from the archive never become paths. The result is two files with fixed names, or every reason against the
archive. Memory stays within some MiB. Time stays within that of reading the archive twice.
"""

from collections.abc import Mapping
from pathlib import Path

from adapters.archive.members import CONFIG_NAME, WEIGHTS_NAME, Broken, Members
from adapters.archive.sinks import Sinks, Unpacked
from adapters.archive.tarball import GZIP_MAGIC, unpack_tarball
from adapters.archive.zipped import ZIP_MAGIC, unpack_zip
from adapters.errors import AdapterRejected, Reason, grouped

__all__ = ["CONFIG_NAME", "WEIGHTS_NAME", "Unpacked", "unpack"]


def unpack(archive: Path, folder: Path, *, config_bytes: int, weights_bytes: int) -> Mapping[str, Unpacked]:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` into an existing folder. Blocks.

    The first bytes of the archive decide its format. After an error neither file exists. Untrusted archives need a
    separate process: see :func:`adapters.sandbox.unpack_in_child`.

    Args:
        config_bytes, weights_bytes: size limits of the two files, in bytes.

    Returns:
        The two files by name.

    Raises:
        AdapterRejected: the archive is refused; carries every kind of reason that can be known.
        OSError: the archive cannot be read, or a file cannot be written or exists already.
    """
    members = Members({CONFIG_NAME: config_bytes, WEIGHTS_NAME: weights_bytes})
    sinks = Sinks(folder)
    try:
        _read(archive, members, sinks)
    except BaseException:
        sinks.discard()
        raise
    if members.reasons:
        sinks.discard()
        raise AdapterRejected(grouped(members.reasons))
    return sinks.files


def _read(archive: Path, members: Members, sinks: Sinks) -> None:
    try:
        with archive.open("rb") as file:
            magic = file.read(len(ZIP_MAGIC))
            file.seek(0)
            if magic.startswith(GZIP_MAGIC):
                unpack_tarball(file, members, sinks)
            elif magic == ZIP_MAGIC:
                unpack_zip(file, members, sinks)
            else:
                found = f"a file that starts with {magic.hex() or 'nothing'}"
                members.reasons.append(Reason("unknown_archive", "archive", found, "a .tar.gz or a .zip"))
    except Broken as broken:
        members.reasons.append(broken.reason)

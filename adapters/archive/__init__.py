"""A PEFT folder out of a ``.tar.gz`` or a ``.zip`` from a stranger: the two files of an adapter, and nothing else.

The archive is never unpacked by names of its own: two files with fixed names come out, or every reason why not.
Memory stays within some MiB, time within that of reading the archive twice.
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

    Which kind of archive it is its first bytes say. After an error neither file is there. Hostile bytes belong into
    a process of their own: see :func:`adapters.sandbox.unpack_in_child`.

    Args:
        config_bytes, weights_bytes: most bytes of the two files.

    Returns:
        The two files by name.

    Raises:
        AdapterRejected: with every kind of reason that can be known.
        OSError: the archive cannot be read, or a file not be written; one is there already.
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

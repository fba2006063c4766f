"""Files of the console's build, read into memory once, so that no path of a request reaches the file system."""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

#: Folder of the committed build.
STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
#: Folder of the files whose names have a digest of their content.
HASHED = "assets/"

#: Files below this size do not become smaller.
_LEAST_GZIPPED = 1024
_TEXTS = ("text/", "application/json", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the build.

    Attributes:
        gzipped: the same content compressed; None if that is not smaller.
        etag: quoted digest of the content.
    """

    content: bytes = field(repr=False)
    media_type: str
    gzipped: bytes | None = field(repr=False)
    etag: str


@cache
def assets(folder: Path = STATIC) -> dict[str, Asset]:
    """Return the files of a build by their path in its folder; empty if there is no build."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): _asset(path) for path in paths}


def _asset(path: Path) -> Asset:
    content, kind = path.read_bytes(), _media_type(path)
    gzipped = None
    if len(content) >= _LEAST_GZIPPED and kind.startswith(_TEXTS):
        # Without a time in the header, so that every server sends the same bytes.
        gzipped = gzip.compress(content, mtime=0)
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, kind, gzipped, etag)


def _media_type(path: Path) -> str:
    # The machine's own table may name another type for scripts, which browsers then refuse to run.
    if path.suffix in {".js", ".mjs"}:
        return "text/javascript; charset=utf-8"
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

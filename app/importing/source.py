"""Source names of imports. Pure.

- ``hf://org/repository@commit[/subfolder]``. The commit is a full hash, because a branch could move to other bytes.
- ``s3://bucket/prefix/``. Its two objects have the file names that PEFT uses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.domain.errors import InvalidRequest

MAX_SOURCE = 1000

_GRAMMAR = "hf://org/repository@<40 hex digits of a commit>[/subfolder] or s3://bucket/prefix/"

# The hub's naming rule, see huggingface_hub.utils.validate_repo_id.
_HUB_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB = re.compile(
    rf"hf://(?P<repo>{_HUB_NAME}/{_HUB_NAME})@(?P<commit>[0-9a-f]{{40}})(?P<folder>(?:/[^/]+)*)/?", re.ASCII
)
_HUB_SEGMENT = re.compile(r"[A-Za-z0-9._ +=@-]{1,100}", re.ASCII)
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(?:/[^/]+)*)/?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A folder in one commit of a repository on the Hugging Face Hub.

    Attributes:
        repo: ``org/name``.
        commit: 40 hex digits.
        folder: path without leading and trailing slashes; empty for the repository's root.
    """

    repo: str
    commit: str
    folder: str

    @property
    def owner(self) -> str:
        return self.repo.partition("/")[0]

    def __str__(self) -> str:
        return f"hf://{self.repo}@{self.commit}" + (f"/{self.folder}" if self.folder else "")

    def provenance(self) -> dict[str, Any]:
        return {"kind": "import", "from": str(self), "commit": self.commit}


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A prefix of a bucket.

    Attributes:
        bucket: name of the bucket.
        segments: path segments of the prefix, none of them empty, ``.`` or ``..``.
    """

    bucket: str
    segments: tuple[str, ...]

    def key(self, name: str) -> str:
        """Return the exact key of an object under the prefix."""
        return "/".join((*self.segments, name))

    def is_under(self, allowed: "BucketSource") -> bool:
        """Return whether this prefix equals ``allowed`` or lies under it.

        Segments are compared whole, so ``s3://b/pre`` does not allow ``s3://b/prefix``.
        """
        return self.bucket == allowed.bucket and self.segments[: len(allowed.segments)] == allowed.segments

    def __str__(self) -> str:
        return f"s3://{'/'.join((self.bucket, *self.segments))}/"

    def provenance(self) -> dict[str, Any]:
        return {"kind": "import", "from": str(self)}


def read_source(text: str) -> HubSource | BucketSource:
    """Parse the name of a source.

    Raises:
        InvalidRequest
    """
    if len(text) <= MAX_SOURCE and text.isprintable():
        if match := _HUB.fullmatch(text):
            segments = _segments(match["folder"])
            if ".." not in match["repo"] and "--" not in match["repo"] and _are_plain(segments, _HUB_SEGMENT):
                return HubSource(match["repo"], match["commit"], "/".join(segments))
        elif (match := _S3.fullmatch(text)) and _are_plain(segments := _segments(match["prefix"])):
            return BucketSource(match["bucket"], segments)
    raise refused(text, f"Use {_GRAMMAR}.")


class Absent(InvalidRequest):
    """The source lacks a file, or this server may not read it."""


def refused(source: object, advice: str) -> InvalidRequest:
    """Build the error for a source that is not allowed. ``advice`` is a sentence."""
    return InvalidRequest(f"source {str(source)[:200]!r} cannot be imported. {advice}", param="source")


def absent(source: object, name: str, cause: str) -> Absent:
    """Build the error for a file that the source lacks. ``cause`` is a clause."""
    return Absent(
        f"source {str(source)[:200]!r} has no {name} that this server may read ({cause}). Name the folder that has it.",
        param="source",
    )


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")[1:])


def _are_plain(segments: Iterable[str], pattern: re.Pattern[str] | None = None) -> bool:
    return all(
        segment not in {".", ".."} and (pattern is None or pattern.fullmatch(segment) is not None)
        for segment in segments
    )

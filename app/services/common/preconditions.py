"""HTTP preconditions ``If-Match`` and ``If-None-Match`` (RFC 9110, section 13.1). An ETag is a revision."""

import re
from dataclasses import dataclass

from app.domain.errors import InvalidRequest, PreconditionFailed

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e]{0,64})"', re.ASCII)
_MAX_HEADER = 1000


@dataclass(frozen=True, slots=True)
class Precondition:
    """Optimistic concurrency check: the state that the caller expects of the resource it changes.

    Attributes:
        if_match: revisions of which the resource must have one; empty with ``must_exist``.
        if_none_match: revisions that the resource must not have.
        must_exist, must_be_new: ``*`` in ``If-Match`` and in ``If-None-Match``.
    """

    if_match: frozenset[str] = frozenset()
    if_none_match: frozenset[str] = frozenset()
    must_exist: bool = False
    must_be_new: bool = False

    def check(self, revision: int | None) -> None:
        """Compare with the resource's revision in this transaction; None if it does not exist.

        Raises:
            PreconditionFailed: the message names the current ETag.
        """
        tag = None if revision is None else str(revision)
        stale = (
            (self.must_exist and tag is None)
            or (bool(self.if_match) and tag not in self.if_match)
            or (self.must_be_new and tag is not None)
            or tag in self.if_none_match
        )
        if stale:
            field = "if-match" if self.must_exist or self.if_match else "if-none-match"
            state = "does not exist." if revision is None else f"has the ETag {etag(revision)}. Read it again."
            raise PreconditionFailed(f"The condition in {field} does not hold: the resource {state}", param=field)


def read_precondition(if_match: str | None, if_none_match: str | None) -> Precondition:
    """Parse the two headers.

    Raises:
        InvalidRequest: a header is neither ``*`` nor a list of ETags.
    """
    # If-Match uses strong comparison, so a weak tag matches nothing.
    match_tags = _tags("if-match", if_match)
    strong = frozenset(tag for weak, tag in match_tags if not weak)
    return Precondition(
        # If only weak tags were sent, keep a condition that always fails: no revision is empty.
        if_match=strong or frozenset({""} if match_tags else ()),
        if_none_match=frozenset(tag for _, tag in _tags("if-none-match", if_none_match)),
        must_exist=_is_any(if_match),
        must_be_new=_is_any(if_none_match),
    )


def etag(revision: int) -> str:
    """Return the strong ETag of a revision."""
    return f'"{revision}"'


def _is_any(header: str | None) -> bool:
    return header is not None and header.strip() == "*"


def _tags(name: str, header: str | None) -> list[tuple[bool, str]]:
    if header is None or _is_any(header):
        return []
    matches = [_TAG.fullmatch(part.strip()) for part in header[:_MAX_HEADER].split(",")]
    tags = [(match[1] is not None, match[2]) for match in matches if match is not None]
    if len(header) > _MAX_HEADER or len(tags) < len(matches):
        raise InvalidRequest(f'{name} is {header[:80]!r}; it must be * or ETags such as "17".', param=name)
    return tags

"""Grammar of names, checked before a request is sent. The server decides; its grammar is the same."""

import re

SLUG_WORDS = "1 to 63 characters of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit"

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)


def is_slug(text: str) -> bool:
    """Return whether the text can be the name of a tenant, adapter or alias."""
    return _SLUG.fullmatch(text) is not None

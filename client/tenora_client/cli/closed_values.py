"""Values from a closed set, such as scopes and output formats: checked with a proposal for a mistyped one."""

import difflib
from collections.abc import Iterable

import typer


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return a question with the nearest name and a leading space, or an empty string if none is near."""
    near = difflib.get_close_matches(text, list(names), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def checked_value(text: str, choices: Iterable[str], noun: str) -> str:
    """Return a value of the set.

    Args:
        noun: the kind of value with its article, such as ``a scope``.

    Raises:
        typer.BadParameter: the text is not in the set.
    """
    choices = tuple(choices)
    if text not in choices:
        raise typer.BadParameter(
            f"{text[:80]!r} is not {noun}.{did_you_mean(text, choices)} Write one of {', '.join(choices)}."
        )
    return text

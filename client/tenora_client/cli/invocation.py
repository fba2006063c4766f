"""State of one run of the command: the output format, the profile, and where the server and the key came from.

Callbacks of options fill it in before the command's function runs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Optional

#: Formats of ``-o``. The first two are for people, the others for programs.
FORMATS = ("table", "wide", "json", "yaml", "name")


@dataclass
class Invocation:
    """Mutable state of one run.

    Attributes:
        output: value of ``-o``, None if it was not given.
        profile: value of ``--profile`` or ``TENORA_PROFILE``.
        from_environment: names of the parameters whose value came from the environment.
        arguments: arguments and options of the command, as far as they are parsed.
    """

    output: Optional[str] = None
    profile: Optional[str] = None
    from_environment: set[str] = field(default_factory=set)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_structured(self) -> bool:
        """True if a program reads the result."""
        return self.output in ("json", "yaml", "name")


_CURRENT: ContextVar[Invocation] = ContextVar("tenora_invocation")


def current() -> Invocation:
    """Return the state of the run, or the defaults outside a run."""
    return _CURRENT.get(Invocation())


@contextmanager
def begin() -> Iterator[Invocation]:
    """Start a run with new state."""
    token = _CURRENT.set(Invocation())
    try:
        yield _CURRENT.get()
    finally:
        _CURRENT.reset(token)

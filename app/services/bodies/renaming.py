"""Field names in errors: those of a chat become those of the API that the client speaks."""

import re
from collections.abc import Sequence

from app.domain.errors import TenoraError

#: Pattern of a name in a chat's errors, and the client's name for it. The first rules apply first.
Rule = tuple[re.Pattern[str], str]


class Renaming:
    """Translator of field names in messages and parameters.

    Args:
        rules: (regular expression, replacement) pairs.
    """

    def __init__(self, *rules: tuple[str, str]) -> None:
        self._rules: Sequence[Rule] = [(re.compile(pattern), name) for pattern, name in rules]

    def text(self, text: str) -> str:
        for pattern, name in self._rules:
            text = pattern.sub(name, text)
        return text

    def param(self, param: str | None) -> str | None:
        return None if param is None else self.text(param)

    def error(self, error: TenoraError) -> TenoraError:
        """Rename the fields in an error, and return the same error."""
        error.message, error.param = self.text(error.message), self.param(error.param)
        error.args = (error.message,)
        return error

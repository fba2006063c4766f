"""Resolution of the model names in a batch: each name once, to one version for all lines."""

from collections.abc import Callable, Mapping
from typing import Any

from cachetools import LRUCache

from app.domain.access import Caller
from app.domain.errors import Forbidden, NotFound, RegistryUnavailable, TenoraError
from app.services.serving.targets import Target, Targets

#: Versions in memory, with their templates. Others are looked up again by their exact name.
_AT_ONCE = 256


class BatchNames:
    """Resolver for the lines of one batch.

    A canary or a move of an alias, between two lines or later, changes nothing. ``user`` selects no version.

    Args:
        default: model of lines that name none; None: the base.
        refused: called once with each refusal that concerns another tenant or the key's restrictions.
    """

    def __init__(self, targets: Targets, *, default: str | None, refused: Callable[[str], None]) -> None:
        self._targets, self._default, self._refused = targets, default, refused
        self._exact: dict[str, str] = {}
        self._found: LRUCache[str, Target | TenoraError] = LRUCache(_AT_ONCE)

    async def of_body(self, caller: Caller, body: Mapping[str, Any]) -> Target:
        return await self.named(caller, self._targets.requested_name(body))

    async def named(self, caller: Caller, name: str | None, user: str | None = None) -> Target:  # noqa: ARG002
        name = name or self._default or ""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = await self._look_up(caller, name)
        if isinstance(found, TenoraError):
            # The same instance is raised for each line, so its traceback must not grow.
            raise found.with_traceback(None)
        return found

    async def _look_up(self, caller: Caller, name: str) -> Target | TenoraError:
        try:
            target = await self._targets.named(caller, self._exact.get(name, name))
        except RegistryUnavailable:
            raise
        except TenoraError as error:
            if isinstance(error, Forbidden) or (isinstance(error, NotFound) and error.foreign):
                self._refused(error.message)
            return error
        if target.version is not None:
            self._exact[name] = target.version
        return target

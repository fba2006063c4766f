"""``python -m app.cli.other_routing server serve``: Tenora with another routing rule, to compare it with ours.

The environment variable ``ROUTING`` names the rule: ``random`` or ``power of two``.
"""

import os
import random
from collections.abc import Collection, Mapping

from app.ray import routes
from app.scheduling.routing import Route, Router
from tenora_client.cli.root import app


class Random(Router):
    """Any ready replica. Not a setting: no server of tenants should route like this."""

    def route(
        self,
        version: str | None,
        *,
        now: float,
        tokens: float = 0.0,
        deadline: float | None = None,  # noqa: ARG002 - a keyword of the rule
        avoid: Collection[str] = (),
    ) -> Route:
        ready = self._ready(version, avoid)
        drawn = random.sample(ready, min(self._draws, len(ready)))
        return self._send(min(drawn, key=lambda replica: replica.load), version, tokens, now)

    @property
    def _draws(self) -> int:
        return 1


class PowerOfTwo(Random):
    """The less loaded one of two random replicas."""

    @property
    def _draws(self) -> int:
        return 2


RULES: Mapping[str, type[Router]] = {"random": Random, "power of two": PowerOfTwo}


if __name__ == "__main__":
    routes.Router = RULES[os.environ["ROUTING"]]  # type: ignore[attr-defined]
    app()

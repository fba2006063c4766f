"""Objects of the calls: tenants, keys of every scope, and adapters.

They are recreated regularly, since the calls destroy them.
"""

import random
from collections import defaultdict, deque
from typing import Any

import httpx
import requests
from starlette.routing import compile_path

from tests.support.serving import PeftFiles
from tests.support.site import parts

ADAPTERS = ("prices", "margins")
FOREIGN = "quotes"
TENANT_SCOPES = ("inference", "adapters:read", "adapters:write", "usage:read", "keys:write")

#: Maximum number of remembered names of one kind; the latest are kept.
_REMEMBERED = 12


class World:
    """Tenants and keys of a server, and the names of existing objects.

    Calls cannot reach the platform key used here. They may change, revoke and delete everything else.

    Args:
        files: two adapters' files that the server's base can serve.
        templates: paths of the API, with their parameters' names.

    Attributes:
        callers: permissions of a key -> the key, None for no key.
        files: the same.
        made: number of tenants created.
    """

    def __init__(self, url: str, admin_key: str, files: tuple[PeftFiles, PeftFiles], templates: list[str]) -> None:
        self.files = files
        self.made = 0
        self.callers: dict[str, str | None] = {}
        self._keeper = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {admin_key}"}, timeout=120, trust_env=False
        )
        self._keeper_id = admin_key.split("_")[1]
        self._known: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._patterns = [compile_path(template)[0] for template in sorted(templates)]

    def close(self) -> None:
        self._keeper.close()

    def renew(self) -> None:
        """Create two tenants with adapters, where the second shares one with the first, and keys of every kind."""
        self.made += 1
        own, other = f"own-{self.made}", f"other-{self.made}"
        self._known.clear()
        keys = {slug: self._make_tenant(slug) for slug in (own, other)}
        for scope in TENANT_SCOPES:
            self.callers[scope] = self._make_key(f"/admin/tenants/{own}/keys", scopes=[scope])
        self.callers |= {
            "no key": None,
            "a wrong key": keys[own][:-1] + ("a" if keys[own][-1] != "a" else "b"),
            "admin": self._make_key("/admin/keys"),
            "tenant": keys[own],
            "other tenant": keys[other],
            "restricted": self._make_key(
                f"/admin/tenants/{own}/keys", scopes=["inference", "adapters:read"], adapters=[ADAPTERS[0]]
            ),
            "from elsewhere": self._make_key(f"/admin/tenants/{own}/keys", addresses=["203.0.113.0/24"]),
        }
        for files in self.files:
            self._do("POST", f"/admin/tenants/{own}/adapters/{ADAPTERS[0]}/versions", files=parts(files))
        self._do("POST", f"/admin/tenants/{other}/adapters/{FOREIGN}/versions", files=parts(self.files[0]))
        self._do("PUT", f"/admin/tenants/{other}/adapters/{FOREIGN}/shares/{own}")
        self._do("PUT", f"/admin/tenants/{own}/adapters/{ADAPTERS[0]}/aliases/stable", json={"version": 1})
        self._seed(own, other)

    def parameter(self, rng: random.Random, name: str) -> str | None:
        """Return a value that a path's parameter of this name had in a successful call."""
        found = self._known.get(name)
        return rng.choice(found) if found else None

    def is_kept(self, text: str) -> bool:
        """Return whether a call targets the platform key used here."""
        return self._keeper_id in text

    def learn(self, path: str, response: requests.Response) -> None:
        """Remember the names in the path of a successful call and in its answer's ``Location``."""
        if response.status_code >= 300:
            return
        for place in (path, response.headers.get("location")):
            for pattern in self._patterns:
                if place and (found := pattern.fullmatch(place)):
                    for name, value in found.groupdict().items():
                        if value not in self._known[name]:
                            self._known[name].append(value)

    def _seed(self, own: str, other: str) -> None:
        for name, values in {
            "tenant": (own, own, own, other),
            "recipient": (other, own),
            "owner": (other,),
            "adapter": (*ADAPTERS, FOREIGN),
            "number": ("1", "2"),
            "alias": ("default", "stable", "next"),
            "name": ("adapter_config.json", "adapter_model.safetensors"),
            "file": ("adapter_config.json", "adapter_model.safetensors"),
            "model_id": (ADAPTERS[0], f"{ADAPTERS[0]}@2", f"{ADAPTERS[0]}:stable", f"{other}/{FOREIGN}"),
        }.items():
            self._known[name].extend(values)

    def _make_tenant(self, slug: str) -> str:
        self._do("POST", "/admin/tenants", json={"slug": slug})
        return self._make_key(f"/admin/tenants/{slug}/keys", scopes=list(TENANT_SCOPES))

    def _make_key(self, path: str, **body: object) -> str:
        return str(self._do("POST", path, json={"name": "fuzz", **body}).json()["key"])

    def _do(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self._keeper.request(method, path, **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

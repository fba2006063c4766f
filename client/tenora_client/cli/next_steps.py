"""Explanation of a refused command: the server's sentence, the key that was used, the nearest name, the next step."""

import re
from collections.abc import Mapping
from typing import Optional

from tenora_client import __version__
from tenora_client.cli.access import Access
from tenora_client.cli.invocation import current
from tenora_client.cli.nearest import adapter_argument, nearest
from tenora_client.errors import ConnectionFailed
from tenora_client.failures import lacks_route, mismatch
from tenora_client.transport import Api, Refused

_BY_STATUS = {
    429: "`tenora limits` shows what is left.",
    503: "`tenora status` shows what the server is missing.",
}
_MISSING: Mapping[Optional[str], str] = {
    "tenant": "`tenora tenants list` shows the tenants.",
    "recipient": "`tenora tenants list` shows the tenants.",
    "adapter": "`tenora adapters list` shows the adapters.",
    "model": "`tenora models list` shows the models, and `tenora adapters list` the adapters.",
    "version": "`tenora adapters versions ADAPTER` shows its versions.",
    "alias": "`tenora adapters aliases ADAPTER` shows its aliases.",
    "key_id": "`tenora keys list` shows the keys.",
    "batch_id": "`tenora batch list` shows the batches.",
    "file_id": "`tenora files list` shows the files.",
    "input_file_id": "`tenora files list` shows the files.",
    "deletion": "`tenora adapters deletions` shows the deletions.",
}
#: Beginning of the server's messages for an unknown path or method. Its other answers 404 are about objects.
NO_ROUTE = "This route does not"
#: Parts of the server's messages for a platform key on a tenant's route, and of those with a route for it too.
_NO_TENANT, _ADMIN_ROUTE = "This is a platform key", "/admin/tenants/TENANT"
_SCOPE = re.compile(r"lacks the scope ([a-z:]+)", re.ASCII)


def explanation(api: Api, access: Access, refused: Refused) -> str:
    """Return what happened and what to do."""
    if refused.status == 401:
        return f"{access.url} did not accept the key ({refused.status}). {_wrong_key(access)}"
    if lacks_route(refused) and NO_ROUTE in str(refused):
        return _missing_route(api, access, refused)
    parts = (str(refused), *_advice(api, access, refused))
    return " ".join(part if part.endswith((".", "?")) else f"{part}." for part in parts if part)


def refusal_sentence(refused: Refused) -> str:
    """Return the sentence for a refusal that does not end the command."""
    return " ".join(filter(None, (str(refused), _missing(refused) or _BY_STATUS.get(refused.status, ""))))


def _advice(api: Api, access: Access, refused: Refused) -> tuple[str, ...]:
    if refused.status == 404:
        return nearest(api, refused), _missing(refused)
    if refused.status == 403:
        return f"{access.key_words} was used.", _other_key(refused)
    return (_BY_STATUS.get(refused.status, ""),)


def _missing(refused: Refused) -> str:
    step = _MISSING.get(refused.param, "")
    adapter = adapter_argument()
    return step.replace("ADAPTER", adapter) if adapter else step


def _other_key(refused: Refused) -> str:
    if _NO_TENANT in str(refused):
        if _ADMIN_ROUTE in str(refused) and "tenant" in current().arguments:
            return "Add --tenant TENANT; `tenora tenants list` shows the tenants."
        return "Give a tenant's key with --key, TENORA_KEY or --profile."
    scope = _SCOPE.search(str(refused))
    if scope is None:
        return "`tenora whoami` shows what the key may do."
    if scope[1] == "admin":
        return "Give a platform key with --key, TENORA_KEY or --profile."
    return f"Use a key with this scope. An administrator creates one with `tenora keys create --scope {scope[1]}`."


def _wrong_key(access: Access) -> str:
    """Explain a key that the server does not know, by its form and its origin."""
    key = access.key or ""
    if not key.startswith("tnr_"):
        return (
            f"The key from {access.key_origin} is not a Tenora key: those begin with tnr_. Copy the key again, or run "
            "`tenora login`."
        )
    known = f"Key {access.key_id} from {access.key_origin} is wrong, expired or revoked."
    if access.profile:
        return f"{known} Run `tenora login --profile {access.profile}` with a new key."
    if access.key_origin.startswith(("--", "TENORA_")):
        return f"{known} Check {access.key_origin}, or run `tenora login` with a new key."
    return f"{known} Remove that file, or start the demo again with `tenora server serve --demo`."


def _missing_route(api: Api, access: Access, refused: Refused) -> str:
    """Explain a route that the server lacks, with the releases of both sides."""
    version = server_version(api)
    if version == __version__:
        return str(refused)
    problem = f"the server lacks a route of this command ({refused.status})"
    return str(mismatch(access.url, problem, version))


def server_version(api: Api) -> Optional[str]:
    """Return the server's release, or None if it is too old to tell."""
    try:
        version = api.call("GET", "/v1/server")["version"]
    except (Refused, ConnectionFailed, KeyError, TypeError):
        return None
    return version if isinstance(version, str) else None

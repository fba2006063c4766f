"""Next steps after a refused command, by the error's status and parameter."""

import re
from collections.abc import Mapping
from typing import Optional

from tenora_client.transport import Refused

_BY_STATUS = {
    401: "Check --key or TENORA_KEY. An administrator creates keys with `tenora keys create`.",
    429: "`tenora limits` shows what is left.",
    503: "`tenora engine show` shows the engine's load.",
}
_MISSING: Mapping[Optional[str], str] = {
    "tenant": "`tenora tenants list` shows the tenants.",
    "recipient": "`tenora tenants list` shows the tenants.",
    "adapter": "`tenora adapters list` shows the adapters.",
    "model": "`tenora adapters list` shows the adapters.",
    "version": "`tenora adapters show ADAPTER` shows its versions.",
    "alias": "`tenora adapters show ADAPTER` shows its aliases.",
    "key_id": "`tenora keys list` shows the keys.",
    "deletion": "`tenora adapters deletions` shows the deletions.",
}
_SCOPE = re.compile(r"lacks the scope ([a-z:]+)", re.ASCII)


def next_step(refused: Refused) -> str:
    """Return one sentence with the next step, or an empty string if the error says it all."""
    message = str(refused)
    if refused.status == 404:
        return _MISSING.get(refused.param, "")
    if refused.status == 403 and (scope := _SCOPE.search(message)):
        if scope[1] == "admin":
            return "Give a platform key with --key or TENORA_KEY."
        return f"Use a key with this scope. An administrator creates one with `tenora keys create --scope {scope[1]}`."
    return _BY_STATUS.get(refused.status, "")

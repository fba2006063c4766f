"""Publish the demo's adapters through the admin API and print example calls.

``HOME/demo.json`` (mode 0600) records the result::

    {"base_url", "base_model", "admin_key", "tenants": {"pricing": {"key", "adapters": ["pricing"]}, ...}}
"""

import hashlib
import json
import os
import shlex
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from adapters.identity import content_digest
from app.demo.train import Demo

_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SCOPES = ("inference", "batch", "adapters:read", "adapters:write", "usage:read", "keys:write")


class PublishingFailed(Exception):
    """The server refused a step. The message names the step and quotes the answer."""


class TenantAccess(BaseModel):
    """Key of one business unit, with the names of its adapters."""

    model_config = ConfigDict(frozen=True)

    key: str
    adapters: tuple[str, ...]


class DemoAccess(BaseModel):
    """Content of ``demo.json``."""

    model_config = ConfigDict(frozen=True)

    base_url: str
    base_model: str
    admin_key: str
    tenants: dict[str, TenantAccess]


def publish_demo(client: httpx.Client, *, admin_key: str, home: Path, demo: Demo, base_model: str) -> DemoAccess:
    """Create the demo's tenants, keys and adapters on a running server. Existing ones are kept.

    Args:
        client: client with the server's address as its base URL and a read timeout that covers upload validation.
        admin_key: platform key.
        home: folder of ``demo.json``, which is read and written.
        demo: trained models.
        base_model: the server's name for its base model.

    Raises:
        PublishingFailed: the server refused a step.
        httpx.TransportError: the server did not answer.
    """
    earlier = _read(home / "demo.json")
    tenants = {}
    for name, folder in demo.adapters.items():
        _call(client, "POST", "/admin/tenants", admin_key, json={"slug": name}, allowed=(201, 409))
        old_key = earlier.tenants[name].key if earlier and name in earlier.tenants else None
        valid = old_key and _works(client, old_key) and _has_scopes(client, admin_key, name, old_key)
        key = old_key if old_key and valid else _issue_key(client, admin_key, name)
        _publish(client, admin_key, name, folder)
        tenants[name] = TenantAccess(key=key, adapters=(name,))
    base_url = str(client.base_url).rstrip("/")
    access = DemoAccess(base_url=base_url, base_model=base_model, admin_key=admin_key, tenants=tenants)
    _write(home / "demo.json", access)
    return access


def example_calls(access: DemoAccess, demo: Demo) -> str:
    """Return shell commands that show the demo on the running server, ready to paste.

    They contain the tenants' keys. Print them to the terminal only, never to a log.
    """
    (name, unit), *_ = access.tenants.items()
    new_name = f"my-{name}"
    chat = {"model": name, "messages": [{"role": "user", "content": "What is coffee?"}]}
    files = [f"-F {shlex.quote(f'{file}=@{(demo.adapters[name] / file).resolve()}')}" for file in _FILES]
    sections = [
        ("The base model", _generate(access, unit.key, None)),
        *((f"The adapter {slug}", _generate(access, tenant.key, slug)) for slug, tenant in access.tenants.items()),
        ("OpenAI's chat API", _curl(access, unit.key, "/v1/chat/completions", [_json_body(chat)])),
        ("Upload an adapter", _curl(access, unit.key, f"/v1/adapters/{new_name}/versions", files)),
        ("Ask the new adapter", _generate(access, unit.key, new_name)),
    ]
    return "\n\n".join(f"# {title}\n{command}" for title, command in sections)


def console_sign_in(access: DemoAccess) -> str:
    """Return the address of the console with the keys that sign in there, as comments of a shell.

    Print them to the terminal only, never to a log.
    """
    keys = [(f"the business unit {slug}", tenant.key) for slug, tenant in access.tenants.items()]
    lines = [f"#   {who}: {key}" for who, key in (*keys, ("the platform team", access.admin_key))]
    return "\n".join([f"# The web console: open {access.base_url} and sign in with a key", *lines])


def _generate(access: DemoAccess, key: str, adapter: str | None) -> str:
    parameters = {"max_new_tokens": 64} | ({"adapter_id": adapter} if adapter else {})
    body = {"inputs": "[INST] Can you explain sugar? [/INST]", "parameters": parameters}
    return _curl(access, key, "/generate", [_json_body(body)])


def _json_body(body: dict[str, Any]) -> str:
    return f"-H 'Content-Type: application/json' \\\n  -d {shlex.quote(json.dumps(body))}"


def _curl(access: DemoAccess, key: str, path: str, options: list[str]) -> str:
    lines = [f"curl {access.base_url}{path}", f"-H 'Authorization: Bearer {key}'", *options]
    return " \\\n  ".join(lines)


def _publish(client: httpx.Client, admin_key: str, name: str, folder: Path) -> None:
    """Upload the adapter unless one of its versions has the same bytes.

    A second upload would move the alias: a newer version, published meanwhile, must stay the default.
    """
    versions = f"/admin/tenants/{name}/adapters/{name}/versions"
    answer = _call(client, "GET", versions, admin_key, params={"limit": 200}, allowed=(200, 404))
    digests = {version["digest"] for version in answer.json()["data"]} if answer.status_code == 200 else set()
    if f"sha256:{content_digest(*(_sha256(folder / file) for file in _FILES))}" in digests:
        return
    with ExitStack() as stack:
        files = {file: (file, stack.enter_context((folder / file).open("rb"))) for file in _FILES}
        _call(client, "POST", versions, admin_key, files=files, allowed=(200, 201))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _issue_key(client: httpx.Client, admin_key: str, tenant: str) -> str:
    body = {"name": "demo", "scopes": list(_SCOPES)}
    return str(
        _call(client, "POST", f"/admin/tenants/{tenant}/keys", admin_key, json=body, allowed=(201,)).json()["key"]
    )


def _works(client: httpx.Client, key: str) -> bool:
    answer = _call(client, "GET", "/v1/adapters", key, params={"limit": 1}, allowed=(200, 401, 403))
    return answer.status_code == 200


def _has_scopes(client: httpx.Client, admin_key: str, tenant: str, key: str) -> bool:
    """Return whether the key has all scopes of the demo's keys. A key of an earlier release may lack one."""
    path, cursor = f"/admin/tenants/{tenant}/keys", None
    while True:
        page = {"limit": 200} | ({"cursor": cursor} if cursor else {})
        keys = _call(client, "GET", path, admin_key, params=page, allowed=(200,)).json()
        for row in keys["data"]:
            if row["id"] == key.split("_")[1]:
                return set(_SCOPES) <= set(row["scopes"])
        if (cursor := keys["next_cursor"]) is None:
            return False


def _call(
    client: httpx.Client, method: str, path: str, key: str, *, allowed: tuple[int, ...], **content: Any
) -> httpx.Response:
    answer = client.request(method, path, headers={"authorization": f"Bearer {key}"}, **content)
    if answer.status_code not in allowed:
        raise PublishingFailed(f"{method} {path} was answered with {answer.status_code} {answer.text[:500]}")
    return answer


def _read(path: Path) -> DemoAccess | None:
    """Load the file of an earlier start, None if it is missing or invalid."""
    try:
        return DemoAccess.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _write(path: Path, access: DemoAccess) -> None:
    """Replace the file atomically. The temporary file is created with mode 0600, which the rename keeps."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix="demo.json.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(access.model_dump_json(indent=2) + "\n")
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink()
        raise

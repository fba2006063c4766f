"""``tenora login``, ``logout`` and ``whoami``: saved profiles and the key of the calls."""

import os
import sys
from typing import Annotated, Optional

import typer

from tenora_client.answers import read
from tenora_client.cli.access import Access, admin_key, resolve
from tenora_client.cli.common_options import ProfileOption
from tenora_client.cli.connection import Json, Key, Url, connect
from tenora_client.cli.invocation import current
from tenora_client.cli.output import USAGE, emit_json, emit_record, emit_table, fail, note
from tenora_client.configuration import DEFAULT_URL
from tenora_client.errors import ConfigurationError
from tenora_client.profiles import DEFAULT_NAME, Profile, Profiles, checked_name, config_file, load_profiles
from tenora_client.profiles import save_profiles as save
from tenora_client.transport import Api
from tenora_client.types import Key as OwnKey

_RECORD = ("server", "profile", "key", "from", "name", "tenant", "scopes", "adapters", "addresses", "expires_at")

_LoginKey = Annotated[
    Optional[str], typer.Option("--key", metavar="KEY", help="API key; - reads it from stdin (default: ask)")
]
_LoginUrl = Annotated[Optional[str], typer.Option("--url", help="Address of the server (default: ask)")]


def login(url: _LoginUrl = None, key: _LoginKey = None, as_json: Json = False) -> None:
    """Check a key and save it with the server's address as a profile, which becomes the current one.

    Without --url or --key the command asks for them. The profile is named `default` unless --profile names it.
    """
    profiles = _profiles()
    name = _checked_name(current().profile or DEFAULT_NAME)
    old = profiles.by_name.get(name)
    address = (url or _ask("Address of the server", default=old.url if old else DEFAULT_URL)).strip().rstrip("/")
    text = (sys.stdin.readline() if key == "-" else key or _ask("API key", hide_input=True)).strip()
    access = Access(address, text, "stdin" if key == "-" else "--key" if key else "the prompt")
    with connect(access, as_json=as_json) as api:
        record = own_key(api)
    _save(profiles.with_profile(Profile(name, address, text)))
    if as_json:
        emit_json(record.to_dict())
    note(
        f"Saved the profile {name} in {config_file()}: key {record.id} ({record.name}) of {_owner(record)} on "
        f"{address}. `tenora status` shows the server."
    )
    for variable in ("TENORA_URL", "TENORA_KEY"):
        if os.environ.get(variable):
            note(f"{variable} is set, and the environment comes before a profile. Unset it to use the profile.")


def logout(profile_name: ProfileOption = None) -> None:
    """Remove a profile: the one that --profile names, else the current one."""
    profiles = _profiles()
    profile = _get(profiles, profile_name)
    if profile is None:
        fail("No profile is saved. `tenora login` saves one.", USAGE)
    left = profiles.without(profile.name)
    _save(left)
    switched = f" The current profile is {left.current}." if left.current else ""
    note(f"Removed the profile {profile.name}. The key still works; `tenora keys revoke` revokes it.{switched}")


def profiles(as_json: Json = False) -> None:
    """List the saved profiles, without their secrets."""
    found = _profiles()
    rows = [
        {
            "name": profile.name,
            "url": profile.url,
            "key": Access(profile.url, profile.key).key_id,
            "current": profile.name == found.current,
        }
        for profile in found.by_name.values()
    ]
    if as_json:
        emit_json(rows)
    else:
        columns = {"profile": "name", "server": "url", "key": "key", "current": "current"}
        emit_table(columns, rows, empty="No profile is saved. `tenora login` saves one.")


def use(name: Annotated[str, typer.Argument(metavar="PROFILE", help="Name of a saved profile")]) -> None:
    """Make a saved profile the current one."""
    found = _profiles()
    profile = _get(found, name)
    _save(Profiles(found.by_name, name))
    note(f"The current profile is {name}{f', for {profile.url}' if profile else ''}.")


def whoami(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show the key of the calls, where it comes from, and what it may do. The secret is not shown."""
    access = resolve(url, key, admin_key)
    with connect(access, as_json=as_json) as api:
        record = own_key(api)
    fields = record.to_dict()
    if as_json:
        emit_json(fields)
        return
    shown = {
        **fields,
        "server": access.url,
        "profile": access.profile,
        "key": record.id,
        "from": access.key_origin,
        "tenant": record.tenant or "(platform)",
        "adapters": record.adapters or "all",
        "addresses": record.addresses or "all",
        "expires_at": fields["expires_at"] or "never",
    }
    emit_record(shown, _RECORD)


def own_key(api: Api) -> OwnKey:
    """Fetch the calling key."""
    return read(OwnKey, api.call("GET", "/v1/key"))


def _owner(record: OwnKey) -> str:
    return f"the tenant {record.tenant}" if record.tenant else "the platform team"


def _ask(question: str, *, default: Optional[str] = None, hide_input: bool = False) -> str:
    """Ask on the terminal. End the command without one: a prompt would wait for ever, or read a script's input."""
    if not sys.stdin.isatty():
        fail(
            "There is no terminal to ask for the address and the key. Give --url and --key - with the key on stdin.",
            USAGE,
        )
    answer: str = typer.prompt(question, default=default, hide_input=hide_input, err=True)
    return answer


def _profiles() -> Profiles:
    try:
        return load_profiles()
    except ConfigurationError as error:
        fail(str(error), USAGE)


def _get(profiles: Profiles, name: Optional[str]) -> Optional[Profile]:
    try:
        return profiles.get(name)
    except ConfigurationError as error:
        fail(str(error), USAGE)


def _checked_name(name: str) -> str:
    try:
        return checked_name(name)
    except ConfigurationError as error:
        fail(str(error), USAGE)


def _save(profiles: Profiles) -> None:
    try:
        save(profiles)
    except ConfigurationError as error:
        fail(str(error))

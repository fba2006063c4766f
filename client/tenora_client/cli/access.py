"""Resolve the server and the key of a command.

Each comes from the first of these that has it:

1. an option: ``--url``, ``--key``, or the profile that ``--profile`` names
2. the environment: ``TENORA_URL``, ``TENORA_KEY``
3. a saved profile: ``TENORA_PROFILE``, else the current one
4. the ``demo.json`` that ``tenora server serve --demo`` leaves in HOME (the server's data folder)

A key of a profile goes to the profile's address only, and a demo key to the demo's.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

from tenora_client.cli.demo_access import DemoAccess
from tenora_client.cli.invocation import current
from tenora_client.cli.output import USAGE, fail
from tenora_client.configuration import DEFAULT_URL, key_id
from tenora_client.errors import ConfigurationError
from tenora_client.profiles import Profile, load_profiles

DEMO_FILE = "demo.json"

DemoKey = Callable[[DemoAccess], Optional[str]]


@dataclass(frozen=True)
class Access:
    """Address of a server and the key for it, with the origin of both.

    Attributes:
        key: the key, None if there is none for this address.
        key_origin: words for people, such as ``the profile work``.
        profile: name of the profile that the key is from, None if it is from elsewhere.
        missing: words on a key that exists, but for another address; else empty.
    """

    url: str
    key: Optional[str] = field(repr=False)
    key_origin: str = ""
    profile: Optional[str] = None
    missing: str = ""

    @property
    def key_id(self) -> str:
        """The key's public part, ``tnr_...`` for a malformed key."""
        return key_id(self.key or "")

    @property
    def key_words(self) -> str:
        """The key's public id and its origin. The secret is never shown."""
        name = f"Key {self.key_id}" if (self.key or "").startswith("tnr_") else "The key"
        return f"{name} from {self.key_origin}"

    def required_key(self) -> str:
        """Return the key. End the command if there is none, or if it cannot be one."""
        if self.key is None:
            fail(
                f"There is no key for {self.url}.{self.missing} Run `tenora login --url {self.url}`, give --key or set "
                "TENORA_KEY.",
                USAGE,
            )
        if not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            fail(f"The key from {self.key_origin} is empty or not printable ASCII. Copy the key again.", USAGE)
        return self.key


def resolve(url: Optional[str], key: Optional[str], demo_key: DemoKey) -> Access:
    """Resolve server and key. End the command if a file with them is broken.

    Args:
        url, key: values of the options, which the environment may have filled.
        demo_key: chooses the key of a demo.
    """
    run = current()
    named = None if "profile" in run.from_environment else run.profile
    if named is not None:
        # An option comes before the environment, also if it names a profile.
        url = None if "url" in run.from_environment else url
        key = None if "key" in run.from_environment else key
    url, key = url or None, key or None
    if url and key:
        return Access(url.rstrip("/"), key, _given("key"))
    profile = _profile(run.profile)
    demo = read_demo(home()) if profile is None or url else None
    address = (url or (profile.url if profile else demo.base_url if demo else DEFAULT_URL)).rstrip("/")
    if key:
        return Access(address, key, _given("key"))
    if profile and profile.fits(address):
        return Access(address, profile.key, f"the profile {profile.name}", profile.name)
    if demo and demo.base_url.rstrip("/") == address and (found := demo_key(demo)):
        return Access(address, found, f"{home() / DEMO_FILE}")
    missing = f" The profile {profile.name} is for {profile.url}." if profile else ""
    return Access(address, None, missing=missing)


def admin_key(demo: DemoAccess) -> Optional[str]:
    """Return the platform key of a demo."""
    return demo.admin_key


def tenant_key(demo: DemoAccess, tenant: Optional[str], model: Optional[str]) -> Optional[str]:
    """Return the demo key of this tenant, of the owner of adapter ``model``, or of the first tenant."""
    if tenant is not None:
        return demo.tenants[tenant].key if tenant in demo.tenants else None
    adapter = (model or "").partition("@")[0].partition(":")[0]
    owners = [access for access in demo.tenants.values() if adapter in access.adapters]
    return next((access.key for access in (*owners, *demo.tenants.values())), None)


def home() -> Path:
    """Folder of ``demo.json``. A client reads no other setting of the server."""
    return Path(os.environ.get("TENORA_HOME") or ".tenora")


def read_demo(folder: Path) -> Optional[DemoAccess]:
    """Load the demo published from this HOME, if any."""
    path = folder / DEMO_FILE
    try:
        return DemoAccess.parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        fail(f"{path} is not a readable demo file ({type(error).__name__}). Remove it or set TENORA_HOME.", USAGE)


def _given(name: str) -> str:
    return f"TENORA_{name.upper()}" if name in current().from_environment else f"--{name}"


def _profile(name: Optional[str]) -> Optional[Profile]:
    try:
        return load_profiles().get(name)
    except ConfigurationError as error:
        fail(str(error), USAGE)

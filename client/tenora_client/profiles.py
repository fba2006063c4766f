"""Saved profiles: the address of a server and a key for it, under a name, in one INI file.

The file is ``~/.config/tenora/config.ini`` (``XDG_CONFIG_HOME`` moves it). It holds keys, so only its owner may read
it.
"""

from __future__ import annotations

import configparser
import difflib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tenora_client.errors import ConfigurationError
from tenora_client.names import SLUG_WORDS, is_slug

DEFAULT_NAME = "default"

_SETTINGS, _CURRENT, _PREFIX = "tenora", "profile", "profile "
_OF_OTHERS = 0o077


@dataclass(frozen=True)
class Profile:
    """Address of a server and a key for it. The key goes to this address only."""

    name: str
    url: str
    key: str = field(repr=False)

    def fits(self, url: str) -> bool:
        """Return whether the key is for this address."""
        return url.rstrip("/") == self.url.rstrip("/")


@dataclass(frozen=True)
class Profiles:
    """Content of the file.

    Attributes:
        current: name of the profile that is used if none is named, None for none.
    """

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str | None) -> Profile | None:
        """Return the named profile, or the current one for None.

        Raises:
            ConfigurationError: there is no profile of this name.
        """
        if name is None:
            return self.by_name.get(self.current or "")
        if name in self.by_name:
            return self.by_name[name]
        near = difflib.get_close_matches(name, self.by_name, n=1)
        question = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(f"There is no profile {name!r}.{question} `tenora login --profile {name}` creates it.")

    def with_profile(self, profile: Profile) -> Profiles:
        """Return the profiles with one more, which becomes the current one."""
        return Profiles({**self.by_name, profile.name: profile}, profile.name)

    def without(self, name: str) -> Profiles:
        """Return the profiles without one. A single profile that is left becomes the current one."""
        left = {other: profile for other, profile in self.by_name.items() if other != name}
        current = self.current if self.current in left else None
        return Profiles(left, current or (next(iter(left)) if len(left) == 1 else None))


def config_file() -> Path:
    """Path of the file with the profiles."""
    root = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG specification ignores relative paths.
    root = root if root.is_absolute() else Path.home() / ".config"
    return root / "tenora" / "config.ini"


def checked_name(name: str) -> str:
    """Check the name of a profile.

    Raises:
        ConfigurationError: the name breaks the grammar.
    """
    if not is_slug(name):
        raise ConfigurationError(f"{name[:80]!r} is not a valid name of a profile. Use {SLUG_WORDS}.")
    return name


def load_profiles(path: Path | None = None) -> Profiles:
    """Read the file. A missing file has no profiles.

    Raises:
        ConfigurationError: the file is open to other users, is broken or cannot be read.
    """
    path = path or config_file()
    try:
        with path.open(encoding="utf-8") as file:
            _check_permissions(path, os.fstat(file.fileno()).st_mode)
            return _parsed(path, file.read())
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}. Mend the path or its permissions.") from None
    except UnicodeDecodeError:
        raise _broken(path, 1, "is not UTF-8 text") from None


def save_profiles(profiles: Profiles, path: Path | None = None) -> None:
    """Replace the file atomically: it is written whole under another name first, with the owner's access only.

    Raises:
        ConfigurationError: the file cannot be written. The old one is unchanged.
    """
    path = path or config_file()
    try:
        # A link, for example to a folder of dotfiles, stays a link.
        path = path.resolve()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                _parser_of(profiles).write(file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"Cannot write {path}: {error.strerror}. The old file is unchanged. Free space or mend the folder's "
            "permissions, then run the command again."
        ) from None


def _check_permissions(path: Path, mode: int) -> None:
    if os.name == "posix" and mode & _OF_OTHERS:
        raise ConfigurationError(
            f"{path} holds keys, and other users of this machine may open it (mode {stat.S_IMODE(mode):03o}). "
            f"Run `chmod 600 {path}`."
        )


def _parser() -> configparser.RawConfigParser:
    return configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), default_section="\0")


def _parser_of(profiles: Profiles) -> configparser.RawConfigParser:
    parser = _parser()
    if profiles.current:
        parser[_SETTINGS] = {_CURRENT: profiles.current}
    for name, profile in profiles.by_name.items():
        parser[_PREFIX + name] = {"url": profile.url, "key": profile.key}
    return parser


def _parsed(path: Path, text: str) -> Profiles:
    parser = _parser()
    try:
        parser.read_string(text)
    except configparser.MissingSectionHeaderError as error:
        raise _broken(path, error.lineno, "is in no section") from None
    except configparser.ParsingError as error:
        raise _broken(path, error.errors[0][0], "is not NAME = VALUE") from None
    except configparser.DuplicateSectionError as error:
        raise _broken(path, error.lineno, f"repeats the section [{error.section}]") from None
    except configparser.DuplicateOptionError as error:
        raise _broken(path, error.lineno, f"repeats {error.option!r} of [{error.section}]") from None
    profiles = {}
    for section in parser.sections():
        if section.startswith(_PREFIX):
            profiles[section[len(_PREFIX) :]] = _profile(path, text, section, parser)
    current = parser.get(_SETTINGS, _CURRENT, fallback=None)
    return Profiles(profiles, current)


def _profile(path: Path, text: str, section: str, parser: configparser.RawConfigParser) -> Profile:
    values = {name: parser.get(section, name, fallback="") for name in ("url", "key")}
    lines = text.splitlines()
    line = next((number for number, row in enumerate(lines, 1) if row.strip() == f"[{section}]"), 1)
    for name, value in values.items():
        if not value or not (value.isascii() and value.isprintable()):
            raise _broken(path, line, f"begins [{section}], which has no usable {name!r}")
    return Profile(section[len(_PREFIX) :], **values)


def _broken(path: Path, line: int | None, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"Line {line or 1} of {path} {problem}. Mend it, or remove the file and run `tenora login`."
    )

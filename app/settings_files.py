"""Settings from files: a configuration file in TOML, and a separate file for each secret.

The environment has precedence over secret files, and these over the configuration file.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

#: Variable that names the configuration file.
CONFIG_FILE = "TENORA_CONFIG_FILE"
#: Suffix of a variable that names the file with a setting's value.
SUFFIX = "_FILE"

_MAX_BYTES = 2**20


class SettingsFileError(ValueError):
    """A file with settings cannot be read, or has content that is not allowed. The message names it."""


class SettingsFiles(EnvSettingsSource):
    """Source of the settings that files hold.

    Args:
        environ: variables that name the files.
        secrets: upper-case names of the variables that may have the suffix ``_FILE``.
        inline: those of them that a configuration file must not contain.
    """

    def __init__(
        self,
        settings_cls: type[BaseSettings],
        environ: Mapping[str, str],
        *,
        secrets: frozenset[str],
        inline: frozenset[str],
    ) -> None:
        super().__init__(settings_cls)
        self._environ = {name.upper(): value for name, value in environ.items()}
        self._secrets, self._inline = secrets, inline
        self._prefix = str(self.config.get("env_prefix"))

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        files = {name: Path(value) for name in self._secrets if (value := self._environ.get(name + SUFFIX))}
        for name in sorted(files):
            if name in self._environ:
                raise SettingsFileError(f"{name} and {name}{SUFFIX} are both set. Remove one of them.")
        if path := self._environ.get(CONFIG_FILE):
            values, named = self._read_config(Path(path))
            files = named | files
        # The parser of environment variables knows which values are JSON.
        self.env_vars = {name.lower(): _read_text(path, f"{name}{SUFFIX}") for name, path in files.items()}
        _merge(values, super().__call__())
        return values

    def _read_config(self, path: Path) -> tuple[dict[str, Any], dict[str, Path]]:
        """Return the settings in the configuration file, and the secret files that it names."""
        try:
            values = tomllib.loads(_read_text(path, CONFIG_FILE, may_be_empty=True))
        except tomllib.TOMLDecodeError as error:
            raise SettingsFileError(f"{CONFIG_FILE} names {path}, which is not valid TOML: {error}.") from None
        files: dict[str, Path] = {}
        complaints = []
        for table, key, name, model in list(_keys(values, self.settings_cls, self._prefix)):
            secret = name.removesuffix(SUFFIX)
            if name.endswith(SUFFIX) and secret in self._secrets:
                files[secret] = path.parent / str(table.pop(key))
            elif name in self._inline:
                complaints.append(f"{path} has the secret {key}. Put it in a separate file, named by {key}_file.")
            elif key not in model.model_fields:
                nearest = difflib.get_close_matches(key, model.model_fields, n=3, cutoff=0.6)
                advice = f"Did you mean {' or '.join(nearest)}?" if nearest else "Correct its name or remove it."
                complaints.append(f"{path} has {key}, which is not a setting. {advice}")
        if complaints:
            raise SettingsFileError("\n".join(complaints))
        return values, files


def hide_file_names(source: PydanticBaseSettingsSource, secrets: frozenset[str]) -> None:
    """Hide the names of secret files in groups from pydantic's source, which would take them for unknown settings."""
    if isinstance(source, EnvSettingsSource):
        names = {f"{secret}{SUFFIX}".lower() for secret in secrets}
        source.env_vars = {name: value for name, value in source.env_vars.items() if name not in names}


def make_paths_absolute(environ: MutableMapping[str, str], secrets: frozenset[str]) -> None:
    """Make the paths of files with settings absolute, for processes that run in other folders."""
    names = {CONFIG_FILE, *(f"{secret}{SUFFIX}" for secret in secrets)}
    for name in [name for name, value in environ.items() if value and name.upper() in names]:
        environ[name] = str(Path(environ[name]).resolve())


def _read_text(path: Path, name: str, *, may_be_empty: bool = False) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsFileError(f"{name} names {path}, which cannot be read: {error.strerror}.") from None
    if len(content) > _MAX_BYTES:
        raise SettingsFileError(f"{name} names {path}, which has more than {_MAX_BYTES} bytes.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise SettingsFileError(f"{name} names {path}, which is not text in UTF-8.") from None
    if not may_be_empty and not text.strip():
        raise SettingsFileError(f"{name} names {path}, which is empty.")
    return text if may_be_empty else text.strip()


def _keys(
    values: dict[str, Any], model: type[BaseModel], prefix: str
) -> Iterator[tuple[dict[str, Any], str, str, type[BaseModel]]]:
    """Iterate over the keys of a configuration file.

    Yields:
        The table, the key, the name of its variable, and the model of the table.
    """
    for key, value in values.items():
        name = f"{prefix}{key.upper()}"
        field = model.model_fields.get(key)
        kind = field.annotation if field else None
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(value, kind, f"{name}__")
        else:
            yield values, key, name, model


def _merge(values: dict[str, Any], others: Mapping[str, Any]) -> None:
    for key, value in others.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value

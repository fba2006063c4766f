"""The server's settings, with validation errors in terms of environment variables."""

import os
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from app.settings import PREFIX, Settings, UnknownSetting, check_environment, may_hold_secret, setting_names
from app.settings_files import SettingsFileError
from tenora_client.cli.output import USAGE, fail


def load_settings(**overrides: Any) -> Settings:
    """Load the settings from the environment. End the command on errors.

    Args:
        overrides: values that replace the environment's, None for no override.
    """
    try:
        check_environment(os.environ)
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except (UnknownSetting, SettingsFileError) as error:
        fail(str(error), USAGE)
    except ValidationError as error:
        fail("\n".join(_complaint(detail) for detail in error.errors(include_url=False)), USAGE)
    except SettingsError as error:
        fail(f"A setting is not valid JSON: {error}.", USAGE)


def _complaint(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    # The location of an error in a union or a mapping is longer than the setting's name.
    names = [PREFIX + "__".join(path[:length]).upper() for length in range(len(path), 0, -1)]
    name = next((name for name in names if name in setting_names()), names[-1])
    value = "not valid" if may_hold_secret(name) else repr(detail["input"])[:80]
    reason = detail["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{name} is {value}. {reason[:1].upper()}{reason[1:]}."

"""The server's settings, with validation errors in terms of environment variables."""

import os
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from app.cli.output import USAGE, fail
from app.settings import PREFIX, Settings, UnknownSetting, check_environment

# Values that may hold a secret. Messages never repeat them.
_SECRET = frozenset({"pepper", "accepted_peppers", "database_url"})


def load_settings(**overrides: Any) -> Settings:
    """Load the settings from the environment. End the command on errors.

    Args:
        overrides: values that replace the environment's, None for no override.
    """
    try:
        check_environment(os.environ)
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except UnknownSetting as error:
        fail(str(error), USAGE)
    except ValidationError as error:
        fail("\n".join(_complaint(detail) for detail in error.errors(include_url=False)), USAGE)
    except SettingsError as error:
        fail(f"{error}: found something else, allowed JSON", USAGE)


def _complaint(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    name = PREFIX + "__".join(path).upper()
    found = "a value" if path[0] in _SECRET else repr(detail["input"])[:80]
    return f"{name}: found {found}, allowed: {detail['msg']}"

"""The server's settings, with errors for the person who typed them."""

import os
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from app.cli.output import USAGE, fail
from app.settings import PREFIX, Settings, UnknownSetting, check_environment

# Values that may hold a secret: never repeated.
_SECRET = frozenset({"pepper", "accepted_peppers", "database_url"})


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment; ``overrides`` that are None do not override. Ends the command on errors."""
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

"""The CLI as a script calls it."""

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner, Result

from tenora_client.cli.root import app


@dataclass(frozen=True)
class Tenora:
    """Callable that runs the CLI against one server."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, exit_code: int = 0, **environment: Any) -> Result:
        result = CliRunner().invoke(app, arguments, env=self.environment | environment)
        assert result.exit_code == exit_code, (arguments, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        return result

    def json(self, *arguments: str, **environment: Any) -> Any:
        return json.loads(self(*arguments, "--json", **environment).stdout)

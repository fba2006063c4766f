"""Release of this server, from the metadata of its installation."""

import importlib.metadata

#: Version in pyproject.toml, as ``GET /v1/server``, the OpenAPI document and the start-up summary show it.
RELEASE = importlib.metadata.version("tenora")

"""Published clients against a demo server: a tool loop, a second turn and structured output.

Each client builds its requests itself and runs in a separate environment, see ``install.py``. Client and server talk
directly, without a proxy.
"""

from pathlib import Path

import pytest

from tests.clients.install import FOLDER, HERE, node, python_of
from tests.support.demo_server import succeeds

PYTHON = ("openai", "openai_agents", "anthropic", "litellm", "langchain", "pydantic_ai", "llama_index")
NODE = ("openai", "langchain", "ai")


@pytest.mark.parametrize("client", PYTHON)
def test_a_python_client(demo: dict[str, str], client: str) -> None:
    succeeds([python_of(client), "-I", HERE / "python" / f"{client}_client.py"], demo, FOLDER)


def test_batches_with_the_openai_sdk(demo: dict[str, str]) -> None:
    succeeds([python_of("openai"), "-I", HERE / "python" / "openai_batches.py"], demo, FOLDER)


@pytest.mark.parametrize("client", NODE)
def test_a_node_client(demo: dict[str, str], client: str, tmp_path: Path) -> None:
    # Node resolves packages relative to the script, not to the working directory.
    script = FOLDER / "node" / f"{client}.mjs"
    script.write_text((HERE / "node" / script.name).read_text(encoding="utf-8"), encoding="utf-8")
    succeeds([node(), script], demo, FOLDER)

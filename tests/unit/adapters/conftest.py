from pathlib import Path

import pytest

from adapters.geometry import BaseGeometry, read_geometry
from tests.support.peft_adapters import TINY_LLAMA, make_adapter


@pytest.fixture(scope="session")
def geometry() -> BaseGeometry:
    return read_geometry({"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"} | TINY_LLAMA)


@pytest.fixture(scope="session")
def good_adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of an adapter written by PEFT; tests copy it before they change it."""
    return make_adapter(tmp_path_factory.mktemp("good"))

"""Settings of the demo on a CPU and on a GPU."""

import pytest

from app.cli import demo
from app.cli.demo import demo_settings
from app.engine.vllm.arguments import InvalidEngineArgument, engine_arguments
from app.settings import EngineSettings, Settings


@pytest.mark.parametrize(("cpu", "dtype"), [(True, "float32"), (False, "auto")])
def test_the_dtype_is_one_that_the_device_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path, cpu: bool, dtype: str
) -> None:
    monkeypatch.setattr(demo, "is_cpu_build", lambda: cpu)
    settings = demo_settings(Settings(home=tmp_path))
    assert settings.engine.dtype == dtype
    assert dtype in engine_arguments(settings, tmp_path, served_name="base", cpu=cpu, slots=2)


def test_a_dtype_that_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(demo, "is_cpu_build", lambda: False)
    settings = demo_settings(Settings(home=tmp_path, engine=EngineSettings(dtype="float32")))
    assert settings.engine.dtype == "float32"
    with pytest.raises(InvalidEngineArgument, match="TENORA_ENGINE__DTYPE"):
        engine_arguments(settings, tmp_path, served_name="base", cpu=False, slots=2)

import dataclasses
import shutil
from pathlib import Path

import pytest

from adapters.errors import ValidationFailed
from adapters.geometry import BaseGeometry
from adapters.sandbox import validate_in_child
from adapters.validation import Verdict, validate
from tests.support.bad_adapters import BAD

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def in_child(directory: Path, geometry: BaseGeometry, *, cpu_seconds: float = 60, mebibytes: int = 512) -> Verdict:
    return validate_in_child(
        directory / CONFIG,
        directory / WEIGHTS,
        geometry,
        64,
        cpu_seconds=cpu_seconds,
        address_bytes=mebibytes * 2**20,
    )


def test_gives_the_summary_that_validating_here_gives(good_adapter: Path, geometry: BaseGeometry) -> None:
    verdict = in_child(good_adapter, geometry, mebibytes=256)
    assert verdict == validate(good_adapter / CONFIG, good_adapter / WEIGHTS, geometry, 64)
    assert verdict.summary is not None


def test_gives_the_reasons_that_validating_here_gives(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    for name in ("feature use_dora", "unknown key of odd characters", "NaN", "prefix three times"):
        BAD[name].change(directory)
    verdict = in_child(directory, geometry)
    assert verdict == validate(directory / CONFIG, directory / WEIGHTS, geometry, 64)
    assert verdict.summary is None


def test_too_little_memory_is_no_verdict(good_adapter: Path, geometry: BaseGeometry) -> None:
    with pytest.raises(ValidationFailed, match="16777216 bytes of address space"):
        in_child(good_adapter, geometry, mebibytes=16)


def test_too_little_time_is_no_verdict(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    """A sparse file takes no disk space; reading this one takes far more than the allowed second of CPU time."""
    shutil.copy(good_adapter / CONFIG, tmp_path)
    size = 2**36
    header = f'{{"a":{{"dtype":"F32","shape":[{size // 2**20},{2**18}],"data_offsets":[0,{size}]}}}}'.encode()
    with (tmp_path / WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + size)
    with pytest.raises(ValidationFailed, match="SIGXCPU"):
        in_child(tmp_path, geometry, cpu_seconds=1)


def test_a_file_that_is_not_there_is_no_verdict(geometry: BaseGeometry, tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match="stopped with an error"):
        in_child(tmp_path, geometry)


def test_the_server_s_environment_stays_with_the_server(
    good_adapter: Path, geometry: BaseGeometry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # If either variable were inherited, the child's interpreter would not start.
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert in_child(good_adapter, dataclasses.replace(geometry, dtype="float32")).summary is not None

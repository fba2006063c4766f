"""HOME is closed to other users of the machine, even if it was created with open permissions."""

import logging
import stat
from pathlib import Path

import pytest

from app.settings import Settings
from app.support.home import secure_home
from app.wiring.container import Container
from tests.support.serving import NoEngine, save_base


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [None, 0o755, 0o777, 0o750, 0o1777])
def test_a_start_closes_home(tmp_path: Path, before: int | None) -> None:
    home = tmp_path / "deep" / "home"
    if before is not None:
        home.mkdir(parents=True)
        home.chmod(before)
    Container(Settings(home=home, base_model=str(save_base(tmp_path / "base"))), engine=NoEngine())
    assert mode(home) == 0o700


def test_a_home_of_another_user_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)

    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refused)
    with caplog.at_level(logging.WARNING):
        secure_home(tmp_path)
    assert "mode 755" in caplog.text

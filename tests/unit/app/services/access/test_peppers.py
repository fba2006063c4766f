"""Peppers: file creation, permissions, and precedence of the settings."""

import json
import multiprocessing
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from app.services.access.peppers import InvalidPepper, Peppers, derive, load_peppers
from app.settings import Settings


def test_it_is_made_once_and_for_the_owner_only(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    pepper = load_peppers(settings)
    assert len(pepper.current) >= 32
    assert pepper.others == ()
    assert load_peppers(settings) == pepper
    assert load_peppers(Settings(home=tmp_path / "another")) != pepper
    folder = settings.home / "secrets"
    assert [path.name for path in folder.iterdir()] == ["pepper"]
    assert stat.S_IMODE((folder / "pepper").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    homes = [Settings(home=tmp_path / str(number)) for number in range(20) for _ in range(2)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        peppers = list(pool.map(load_peppers, homes))
    assert peppers[::2] == peppers[1::2]
    assert len({pepper.current for pepper in peppers}) == 20


def test_the_settings_come_first(tmp_path: Path) -> None:
    given = "a pepper that is kept in some vault"
    assert load_peppers(Settings(home=tmp_path, pepper=given)) == Peppers(given.encode())
    assert list(tmp_path.iterdir()) == []


def test_a_short_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPepper, match="TENORA_PEPPER has 3 bytes; a pepper must have at least 32"):
        load_peppers(Settings(home=tmp_path, pepper="abc"))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "pepper").write_text("\n")
    with pytest.raises(InvalidPepper, match="has 0 bytes"):
        load_peppers(Settings(home=tmp_path))
    with pytest.raises(InvalidPepper, match="TENORA_ACCEPTED_PEPPERS has 3 bytes"):
        load_peppers(Settings(home=tmp_path, accepted_peppers=["abc"]))


def test_others_are_accepted_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (f"the {name} one, which is long enough for all" for name in ("old", "new"))
    monkeypatch.setenv("TENORA_PEPPER", new)
    monkeypatch.setenv("TENORA_ACCEPTED_PEPPERS", json.dumps([old]))
    peppers = load_peppers(Settings(home=tmp_path))
    assert peppers.every == (new.encode(), old.encode())
    assert peppers.derived("a", "b") == tuple(derive(one, "a", "b") for one in peppers.every)
    assert old not in repr(peppers) + repr(Settings(home=tmp_path))

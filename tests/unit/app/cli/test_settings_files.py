"""Commands whose settings come from files."""

PEPPER = "a pepper of more than thirty-two bytes"


def test_commands_tell_mistakes_in_files(alone, tmp_path):
    path = tmp_path / "tenora.toml"
    path.write_text("prot = 1\n")
    (line,) = alone("migrate", exit_code=2, TENORA_CONFIG_FILE=str(path)).stderr.splitlines()
    assert f"{path} has prot, which is not a setting." in line
    path.write_text("port = 70000\n")
    assert "TENORA_PORT is 70000" in alone("migrate", exit_code=2, TENORA_CONFIG_FILE=str(path)).stderr


def test_a_registry_whose_pepper_is_in_a_file(alone, tmp_path):
    (tmp_path / "pepper").write_text(PEPPER)
    (tmp_path / "other").write_text(PEPPER + "!")
    alone("init", TENORA_PEPPER_FILE=str(tmp_path / "pepper"))
    assert not (tmp_path / "home/secrets").exists()
    alone("audit", "verify", TENORA_PEPPER_FILE=str(tmp_path / "pepper"))
    assert "pepper" in alone("audit", "verify", exit_code=1, TENORA_PEPPER_FILE=str(tmp_path / "other")).stderr

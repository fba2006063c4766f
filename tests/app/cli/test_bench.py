"""Options of ``tenora bench`` that make no sense, found before anything is started."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--n", "1,many"], "--n: found '1,many', allowed numbers with commas between them"),
        (["--alpha", ""], "--alpha: found ''"),
        (["--slots", "some"], "--slots: found 'some', allowed auto or a number"),
        (["--rivals", "s-lora"], "--rivals: found s-lora, allowed vllm, peft, base"),
        (["--setting", "PATH=/x"], "--setting: found 'PATH=/x', allowed TENORA_NAME=VALUE"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_the_grid_names_what_is_wrong(alone, arguments, said):
    assert said in alone("bench", "adapters", *arguments, exit_code=2).stderr

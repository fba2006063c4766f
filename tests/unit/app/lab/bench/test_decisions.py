from app.lab.bench.decisions import SCENARIOS, measure


def test_every_scenario_is_measured() -> None:
    assert measure(steps=20).keys() == SCENARIOS.keys()

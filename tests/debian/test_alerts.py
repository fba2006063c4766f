"""Alert rules, loaded and evaluated by Prometheus itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
CASES = Path(__file__).with_name("alerts_test.yml")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program, "promtool is not installed: run deploy/ci/prepare.sh"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_prometheus_reads_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_for_what_is_gone() -> None:
    done = promtool("test", "rules", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "alert",
    ["TenoraServerDown", "TenoraAbsent", "TenoraMetricsAbsent", "TenoraDatabaseRefuses", "TenoraFilesLost"],
)
def test_a_rule_that_never_fires_is_found(tmp_path: Path, alert: str) -> None:
    """The cases above cover each rule: without the rule they fail."""
    rules, cases = RULES.read_text(), CASES.read_text()
    assert rules.count(f"alert: {alert}\n") == 1
    (tmp_path / "alerts.yml").write_text(rules.replace(f"alert: {alert}\n", "alert: Another\n"))
    (tmp_path / "cases.yml").write_text(cases.replace("../../deploy/prometheus/alerts.yml", "alerts.yml"))
    assert promtool("test", "rules", str(tmp_path / "cases.yml")).returncode != 0

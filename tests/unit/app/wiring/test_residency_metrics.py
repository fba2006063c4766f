"""Residency of adapters for routers: vLLM's format, ids only, behind a key."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import ValidationError
from typer.testing import CliRunner

from app.settings import Settings
from app.wiring.residency_metrics import MAX_VERSIONS, ResidencyMetrics
from tenora_client.cli.root import app as command
from tests.support.overviews import overview, residency
from tests.support.serving import NoEngine, save_base
from tests.support.site import running_site

AT = 1_795_000_000.5


def read(*versions) -> dict[str, list[Sample]]:
    engine = NoEngine()
    engine.shown = overview(*versions)
    text = generate_latest(ResidencyMetrics(engine, clock=lambda: AT).now()).decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_loaded_and_waiting_versions_are_labels() -> None:
    found = read(residency(12), residency(7, running=2), residency(9, "host", waiting=1), residency(5, "host"))
    [sample] = found["vllm:lora_requests_info"]
    assert sample.labels == {"max_lora": "4", "running_lora_adapters": "7,12", "waiting_lora_adapters": "9"}
    assert sample.value == AT
    assert {(one.labels["version"], one.labels["tier"], one.value) for one in found["tenora_version_resident"]} == {
        ("12", "slot", 1), ("7", "slot", 1), ("9", "host", 1), ("5", "host", 1),
    }  # fmt: skip


def test_an_idle_engine_names_none() -> None:
    [sample] = read()["vllm:lora_requests_info"]
    assert sample.labels == {"max_lora": "4", "running_lora_adapters": "", "waiting_lora_adapters": ""}


def test_the_number_of_series_is_bounded() -> None:
    held = [residency(number, "host") for number in range(1, MAX_VERSIONS + 100)]
    found = read(*held, residency(10_000))
    assert len(found["tenora_version_resident"]) == MAX_VERSIONS
    assert "10000" in {sample.labels["version"] for sample in found["tenora_version_resident"]}


@pytest.mark.parametrize("residency_shown", [False, True])
def test_it_is_shown_on_request_only_and_behind_a_key(tmp_path: Path, residency_shown: bool) -> None:
    base = tmp_path / "base"
    base.mkdir()
    with running_site(tmp_path / "home", save_base(base), metrics_residency=residency_shown) as site:
        site.engine.shown = overview(residency(7, running=1))
        with site.client(None) as anyone:
            assert anyone.get("/metrics").status_code == 401
        with site.client(site.admin_key) as admin:
            text = admin.get("/metrics").text
    names = {family.name: family for family in text_string_to_metric_families(text)}
    assert ("vllm:lora_requests_info" in names) == ("tenora_version_resident" in names) == residency_shown
    if residency_shown:
        [sample] = names["vllm:lora_requests_info"].samples
        assert sample.labels["running_lora_adapters"] == "7"


def test_without_a_key_for_metrics_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="TENORA_METRICS_KEY_REQUIRED=true"):
        Settings(metrics_residency=True, metrics_key_required=False)
    monkeypatch.setenv("TENORA_METRICS_RESIDENCY", "true")
    monkeypatch.setenv("TENORA_METRICS_KEY_REQUIRED", "false")
    refused = CliRunner().invoke(command, ["server", "serve"])
    assert refused.exit_code == 2
    assert "It needs TENORA_METRICS_KEY_REQUIRED=true" in refused.output

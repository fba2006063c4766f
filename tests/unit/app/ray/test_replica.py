"""HOME and settings of a replica, and the commands that start replicas."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import ProgrammingError

from app.domain.errors import EngineUnavailable
from app.ray import cluster
from app.ray.cluster import Started
from app.ray.replica import replica_home, replica_settings, start_failure
from app.settings import Settings


def test_each_replica_locks_the_first_free_home(tmp_path: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        assert first.enter_context(replica_home(tmp_path)) == tmp_path / "1"
        assert second.enter_context(replica_home(tmp_path)) == tmp_path / "2"
        first.close()
        # The next replica finds the disk cache of the one that ended.
        with replica_home(tmp_path) as home:
            assert home == tmp_path / "1"


def test_a_replica_shares_registry_store_and_base_of_its_server(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    settings = Settings(home=tmp_path, base_model=str(base), base_model_name="demo")
    replica = replica_settings(settings, tmp_path / "engines" / "1")
    assert replica.home == tmp_path / "engines" / "1"
    assert replica.database_url == f"sqlite+aiosqlite:///{tmp_path / 'tenora.db'}"
    assert replica.store_url == (tmp_path / "blobs").as_uri()
    assert (replica.base_model, replica.base_model_name) == (str(base), "demo")


def test_a_replica_keeps_the_urls_of_its_settings(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, base_model=str(tmp_path), database_url="postgresql://db/tenora", store_url="s3://bucket/prefix"
    )
    replica = replica_settings(settings, tmp_path / "1")
    assert (replica.database_url, replica.store_url) == ("postgresql://db/tenora", "s3://bucket/prefix")


def test_a_replica_gets_no_pepper_and_the_url_of_its_role(tmp_path: Path) -> None:
    url = "postgresql://tenora_replica@db/tenora"
    settings = Settings(
        home=tmp_path,
        base_model=str(tmp_path),
        database_url="postgresql://owner@db/tenora",
        pepper="p" * 32,
        accepted_peppers=("q" * 32,),
        ray={"database_url": url},
    )
    replica = replica_settings(settings, tmp_path / "1")
    assert (replica.database_url, replica.pepper, replica.accepted_peppers) == (url, None, ())


def test_a_role_without_rights_is_told_in_words() -> None:
    refused = ProgrammingError("SELECT secret", None, InsufficientPrivilege("permission denied for table nodes"))
    assert "tenora server database-role" in start_failure(refused)
    assert "SELECT" not in start_failure(refused)
    assert start_failure(OSError("no\nroom")) == "OSError: no room"


def test_a_cluster_of_an_ended_process_is_not_running(tmp_path: Path) -> None:
    record = tmp_path / "engines" / "cluster.json"
    record.parent.mkdir()
    ended = json.dumps({"address": "127.0.0.2:1", "pid": 2**22})
    for text in ("", "[]", "{}", '{"address": "127.0.0.2:1", "pid": "x"}', ended):
        record.write_text(text)
        assert cluster.started_on(tmp_path) is None
    record.write_text(json.dumps({"address": "127.0.0.2:7", "pid": os.getpid()}))
    assert cluster.started_on(tmp_path) == Started("127.0.0.2:7", os.getpid())
    assert cluster.resolved_address(Settings(home=tmp_path, ray={"address": "local"})) == "127.0.0.2:7"


def test_an_address_of_the_settings_needs_no_local_cluster(tmp_path: Path) -> None:
    assert cluster.resolved_address(Settings(home=tmp_path, ray={"address": "10.0.0.1:6379"})) == "10.0.0.1:6379"
    with pytest.raises(EngineUnavailable, match="tenora engines up"):
        cluster.resolved_address(Settings(home=tmp_path))


@pytest.mark.parametrize("address", ["", "ray://host:1", "host", "host:x", "http://host:1", "a b:1"])
def test_addresses_of_another_form_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Settings(ray={"address": address})


def test_the_minimum_may_not_exceed_the_maximum() -> None:
    with pytest.raises(ValueError, match="at most max_replicas"):
        Settings(ray={"min_replicas": 3, "max_replicas": 2})

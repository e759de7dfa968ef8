from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leveret.config import load
from leveret.core.broker.broker import Broker
from leveret.model.errors import ConfigError
from leveret.runtime.definitions.boot import BootDefinitions
from leveret.storage.state_file import StateFile

SHOP: dict[str, Any] = {
    "vhosts": [{"name": "shop"}],
    "exchanges": [{"name": "x", "vhost": "shop", "type": "fanout"}],
}


def boot(tmp_path: Path, **settings: str) -> BootDefinitions:
    named = {"load_definitions": str(tmp_path / "d.json")} | {
        f"definitions.{name}": value for name, value in settings.items()
    }
    return BootDefinitions(load(None, named).definitions, StateFile(tmp_path / "state.json"))


def written(tmp_path: Path, content: dict[str, Any], name: str = "d.json") -> Path:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def broker() -> Broker:
    return Broker(lambda *_: [])


def test_without_settings_there_is_nothing_to_import(tmp_path: Path) -> None:
    assert not BootDefinitions(load(None).definitions, StateFile(tmp_path / "state")).is_configured


def test_what_is_imported_is_to_be_logged(tmp_path: Path, broker: Broker) -> None:
    written(tmp_path, SHOP)
    one = boot(tmp_path)
    assert one.is_configured
    one.into(broker)
    assert ("shop", "x") in broker.definitions.by_kind["exchanges"]
    assert len(broker.changes) == 2


def test_of_a_failed_import_nothing_is_to_be_logged(tmp_path: Path, broker: Broker) -> None:
    path = written(tmp_path, SHOP | {"queues": [{"name": "q", "vhost": "nowhere"}]})
    with pytest.raises(ConfigError, match=f"{path}: queues 'nowhere q': "):
        boot(tmp_path).into(broker)
    assert broker.changes == []


@pytest.mark.parametrize("levels", [101, 2_000, 100_000])
def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path, broker: Broker, levels: int) -> None:
    deep = '{"global_parameters":[{"name":"p","value":' + "[" * levels + "]" * levels + "}]}"
    (tmp_path / "d.json").write_text(deep)
    with pytest.raises(ConfigError, match=r"d\.json: .*nested more than 100 levels"):
        boot(tmp_path).into(broker)
    assert broker.changes == []


def test_a_failed_import_names_all_that_is_wrong(tmp_path: Path, broker: Broker) -> None:
    shovel = {"component": "shovel", "name": "s", "vhost": "shop", "value": {}}
    federation = {"federation-upstream-set": "all"}
    policy = {"vhost": "shop", "name": "f", "pattern": "", "definition": federation, "priority": 0}
    written(tmp_path, SHOP | {"parameters": [shovel], "policies": [policy | {"apply-to": "all"}]})
    with pytest.raises(
        ConfigError, match=r"policies 'shop f': .*; parameters 'shop shovel s': .*; nothing was imported"
    ):
        boot(tmp_path).into(broker)


def test_the_same_files_are_passed_over_only_after_the_import_was_durable(
    tmp_path: Path, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    written(tmp_path, SHOP)
    first = boot(tmp_path, skip_if_unchanged="true")
    first.into(broker)
    caplog.clear()
    again = boot(tmp_path, skip_if_unchanged="true")
    again.into(broker)
    assert "definitions_imported" in caplog.text
    again.remember()
    caplog.clear()
    boot(tmp_path, skip_if_unchanged="true").into(broker)
    assert "definitions_imported" not in caplog.text


def test_what_is_there_already_is_not_logged_again(tmp_path: Path, broker: Broker) -> None:
    written(tmp_path, SHOP)
    boot(tmp_path).into(broker)
    broker.changes.clear()
    boot(tmp_path).into(broker)
    assert broker.changes == []
    written(tmp_path, SHOP | {"vhosts": [{"name": "shop", "description": "new"}]})
    boot(tmp_path).into(broker)
    assert len(broker.changes) == 1


def test_a_changed_file_is_imported_again(tmp_path: Path, broker: Broker) -> None:
    written(tmp_path, SHOP)
    one = boot(tmp_path, skip_if_unchanged="true")
    one.into(broker)
    one.remember()
    written(tmp_path, SHOP | {"queues": [{"name": "q", "vhost": "shop"}]})
    boot(tmp_path, skip_if_unchanged="true").into(broker)
    assert ("shop", "q") in broker.definitions.by_kind["queues"]


def test_both_ways_to_name_definitions_are_followed(tmp_path: Path, broker: Broker) -> None:
    written(tmp_path, {"vhosts": [{"name": "one"}]})
    path = written(tmp_path, {"vhosts": [{"name": "two"}]}, "more/d.json").parent
    (path / "README").write_text("not one of them")
    boot(tmp_path, import_backend="local_filesystem", **{"local.path": str(path)}).into(broker)
    assert {("one",), ("two",)} <= set(broker.definitions.by_kind["vhosts"])


def test_a_file_that_is_not_there_is_named(tmp_path: Path, broker: Broker) -> None:
    with pytest.raises(ConfigError, match=r"d\.json: No such file"):
        boot(tmp_path).into(broker)

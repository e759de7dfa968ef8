"""What a real node shows and logs has no secret in it, unless it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess

SECRET: Final = "hunter2hunter2"
UPSTREAM: Final = {"endpoints": ["127.0.0.1:9"], "username": "replicator", "password": SECRET}
PARAMETERS: Final = {
    "schema_definition_sync_upstream": UPSTREAM,
    "standby_replication_upstream": UPSTREAM,
    "site": {"uri": f"amqp://user:{SECRET}@host", "s3": {"secret_access_key": SECRET}},
}
LISTINGS: Final = ("report", "environment", "list_global_parameters", "list_parameters", "status")
PATHS: Final = (
    "global-parameters",
    "global-parameters/site",
    "parameters",
    "definitions",
    "overview",
    "nodes",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    folder = tmp_path_factory.mktemp("node")
    config = {
        "default_pass": SECRET,
        "schema_definition_sync.operating_mode": "downstream",
        "log.console.level": "debug",
    }
    with LeveretProcess(config=config, parent_dir=folder) as node:
        for name, value in PARAMETERS.items():
            node.ctl("set_global_parameter", name, "-", input_text=json.dumps(value))
        yield node


def get(node: LeveretProcess, path: str, user: str = "guest") -> str:
    reply = httpx.get(f"http://{LOOPBACK}:{node.management_port}/api/{path}", auth=(user, SECRET), timeout=30)
    return reply.raise_for_status().text


def stored(node: LeveretProcess) -> dict[str, object]:
    """The parameters as they are."""
    found = json.loads(get(node, "global-parameters?include_secrets=true"))
    return {each["name"]: each["value"] for each in found if each["name"] in PARAMETERS}


@pytest.mark.parametrize("listing", LISTINGS)
def test_what_is_made_to_be_passed_on_has_no_password_in_it(node: LeveretProcess, listing: str) -> None:
    shown = node.ctl(listing).stdout
    assert shown
    assert SECRET not in shown
    assert SECRET not in node.ctl("--formatter", "json", listing).stdout or listing == "report"


@pytest.mark.parametrize("path", PATHS)
def test_the_api_shows_none_either(node: LeveretProcess, path: str) -> None:
    assert SECRET not in get(node, path)


def test_the_log_has_none(node: LeveretProcess) -> None:
    assert SECRET not in node.log_text()


def test_secrets_are_shown_to_an_administrator_who_asks(node: LeveretProcess) -> None:
    assert stored(node) == PARAMETERS
    assert SECRET in node.ctl("list_global_parameters", "--include-secrets").stdout
    assert SECRET in node.ctl("export_definitions", "-", "--include-secrets").stdout


def test_an_import_of_an_own_export_destroys_no_password(node: LeveretProcess, tmp_path: Path) -> None:
    export = tmp_path / "definitions.json"
    node.ctl("export_definitions", str(export))
    assert SECRET not in export.read_text()
    assert "unchanged" in node.ctl("import_definitions", str(export), "--skip-if-unchanged").stdout
    node.ctl("import_definitions", str(export))
    assert stored(node) == PARAMETERS


def test_a_value_that_was_shown_may_be_changed_and_set_again(node: LeveretProcess) -> None:
    shown = json.loads(get(node, "global-parameters/standby_replication_upstream"))["value"]
    wanted = json.dumps({**shown, "endpoints": ["127.0.0.1:10"]})
    node.ctl("set_standby_replication_upstream_endpoints", "-", input_text=wanted)
    held = stored(node)["standby_replication_upstream"]
    assert held == {**UPSTREAM, "endpoints": ["127.0.0.1:10"]}
    node.ctl("set_global_parameter", "standby_replication_upstream", "-", input_text=json.dumps(UPSTREAM))


def test_an_export_without_secrets_is_refused_where_nobody_knows_them(
    node: LeveretProcess, tmp_path: Path
) -> None:
    export, whole = tmp_path / "without.json", tmp_path / "whole.json"
    node.ctl("export_definitions", str(export))
    node.ctl("export_definitions", str(whole), "--include-secrets")
    with LeveretProcess(parent_dir=tmp_path) as other:
        refused = other.ctl("import_definitions", str(export), check=False)
        assert refused.returncode != 0
        assert "--include-secrets" in refused.stderr
        assert "global_parameters" in refused.stderr
        other.ctl("import_definitions", str(whole))
        found = json.loads(
            other.ctl("--formatter", "json", "list_global_parameters", "--include-secrets").stdout
        )
        assert {each["name"] for each in found} >= set(PARAMETERS)


def test_a_node_starts_again_with_its_own_export_as_boot_definitions(tmp_path: Path) -> None:
    export = tmp_path / "definitions.json"
    with LeveretProcess(parent_dir=tmp_path) as one:
        one.ctl("set_global_parameter", "site", "-", input_text=json.dumps(PARAMETERS["site"]))
        one.ctl("export_definitions", str(export))
        one.stop()
        one.config["load_definitions"] = str(export)
        one.start()
        assert SECRET in one.ctl("list_global_parameters", "--include-secrets").stdout


@pytest.mark.parametrize("command", [("set_global_parameter",), ("set_parameter", "federation-upstream")])
def test_what_is_set_is_not_printed(node: LeveretProcess, command: tuple[str, ...]) -> None:
    """The value may come as an argument: the terminal's output is what is passed on."""
    said = node.ctl(*command, "printed", json.dumps({"uri": f"amqp://user:{SECRET}@host"}), check=False)
    assert "printed" in said.stdout
    assert SECRET not in said.stdout + said.stderr

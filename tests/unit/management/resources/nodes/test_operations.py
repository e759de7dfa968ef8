from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

ROOT = logging.getLogger()


@contextmanager
def logging_to(*handlers: logging.Handler) -> Iterator[None]:
    """Only these handlers log, from info on; within a test, as pytest's own come and go around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ROOT, "handlers", list(handlers))
        patch.setattr(ROOT, "level", logging.INFO)
        yield
    for handler in handlers:
        handler.close()


@contextmanager
def log_file(directory: Path) -> Iterator[Path]:
    """The node's log: the console and a file."""
    handler = logging.FileHandler(directory / "leveret.log", encoding="utf-8")
    with logging_to(logging.StreamHandler(), handler):
        yield directory / "leveret.log"


def test_settings_are_shown_without_secrets(admin: Client) -> None:
    shown = {each["key"]: each["value"] for each in admin.get("/api/operations/settings").json()}
    assert shown["nodename"] == "leveret@test"
    assert shown["heartbeat"] == "60"
    assert "default_pass" not in shown


def test_the_node_tells_its_name_to_whoever_may_log_in(
    node: FakeNode, client_as: Callable[..., Client]
) -> None:
    node.add_user("u", "management")
    assert client_as("u").get("/api/operations/node").json() == {"name": "leveret@test"}


def test_only_administrators_operate(node: FakeNode, client_as: Callable[..., Client]) -> None:
    node.add_user("watcher", "monitoring")
    monitor = client_as("watcher")
    for method, path in (("GET", "settings"), ("GET", "log"), ("PUT", "log/level"), ("PUT", "memory-limit")):
        assert monitor.request(method, f"/api/operations/{path}").status_code == 401


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize(
    ("body", "ratio", "size"),
    [({"relative": 0.3}, 0.3, None), ({"absolute": "2GB"}, None, 2 * 10**9), ({"absolute": 5}, None, 5)],
)
def test_a_limit_is_a_part_of_the_memory_or_a_size(
    admin: Client, node: FakeNode, kind: str, body: dict[str, Any], ratio: float | None, size: int | None
) -> None:
    assert admin.put(f"/api/operations/{kind}-limit", **body).status_code == 204
    watermark = getattr(node.alarms, kind)
    assert (watermark.ratio, watermark.bytes_) == (ratio, size)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "give either"),
        ({"relative": 0.1, "absolute": 1}, "give either"),
        ({"relative": -0.1}, "expected 0 or more"),
        ({"absolute": "much"}, "absolute is 'much'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(admin: Client, body: dict[str, Any], reason: str) -> None:
    reply = admin.put("/api/operations/memory-limit", **body)
    assert (reply.status_code, reason in reply.json()["reason"]) == (400, True)


def test_the_log_is_located_and_its_level_set_on_all_outputs(admin: Client, tmp_path: Path) -> None:
    with log_file(tmp_path) as path:
        shown = admin.get("/api/operations/log").json()
        assert (str(path) in shown["places"], len(shown["places"]), shown["level"]) == (True, 2, "info")
        assert admin.put("/api/operations/log/level", level="error").status_code == 204
        assert [handler.level for handler in ROOT.handlers] == [logging.ERROR] * 2
        assert admin.get("/api/operations/log").json()["level"] == "error"
        assert admin.put("/api/operations/log/level", level="loud").status_code == 400


def test_the_last_lines_are_read(admin: Client, tmp_path: Path) -> None:
    with log_file(tmp_path) as path:
        path.write_text("one\ntwo\nthree\n")
        shown = admin.get("/api/operations/log/lines/2").json()
        assert shown == {"path": str(path), "lines": ["two", "three"]}
        assert admin.get("/api/operations/log/lines/0").status_code == 400


def test_the_log_is_followed_from_offset_to_offset(admin: Client, tmp_path: Path) -> None:
    with log_file(tmp_path) as path:
        path.write_text("one\n")
        assert admin.get("/api/operations/log/text/end").json() == {"text": "", "offset": 4}
        path.write_text("one\ntwo\n")
        assert admin.get("/api/operations/log/text/4").json() == {"text": "two\n", "offset": 8}
        path.write_text("new\n")
        assert admin.get("/api/operations/log/text/8").json() == {"text": "new\n", "offset": 4}
        assert admin.get("/api/operations/log/text/x").status_code == 400


def test_a_log_that_is_no_file_can_not_be_read(admin: Client) -> None:
    with logging_to(logging.NullHandler()):
        reply = admin.get("/api/operations/log/lines/5")
    assert (reply.status_code, "not to a file" in reply.json()["reason"]) == (400, True)


def test_listeners_are_suspended_and_resumed(admin: Client, node: FakeNode) -> None:
    for suspended in (True, False):
        assert admin.put("/api/operations/listeners", suspended=suspended).status_code == 204
        assert node.maintenance.is_suspended is suspended


def test_a_node_in_maintenance_is_not_in_service_and_says_so(admin: Client, node: FakeNode) -> None:
    for draining, status in ((True, 503), (False, 200)):
        assert admin.put("/api/operations/maintenance", draining=draining).status_code == 204
        assert admin.get("/api/nodes/leveret@test").json()["being_drained"] is draining
        assert admin.get("/api/health/checks/is-in-service").status_code == status


def test_a_log_without_a_file_can_not_be_reopened(admin: Client) -> None:
    with logging_to(logging.NullHandler()):
        assert admin.post("/api/operations/log/reopen").status_code == 400

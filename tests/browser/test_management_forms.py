"""The forms of RabbitMQ's management page do at Leveret what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pika.exceptions import ConnectionClosedByBroker
from playwright.sync_api import expect

from leveret.testing.network.ports import wait_until
from leveret.testing.servers.chromium import Chromium, Visit
from tests.browser.management_page import ManagementPage
from tests.browser.management_scene import serving
from tests.conformance.brokers import LEVERET, Broker
from tests.conformance.http_scene import client_of

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(900)]

SHOWN_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with serving(LEVERET) as broker:
        yield broker


@pytest.fixture(scope="module")
def http(broker: Broker) -> Iterator[httpx.Client]:
    with client_of(broker) as http:
        yield http


@pytest.fixture(scope="module")
def visited(chromium: Chromium, broker: Broker) -> Iterator[ManagementPage]:
    with chromium.visit(viewport={"width": 1500, "height": 1000}) as visit:
        page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
        page.log_in("guest", "guest")
        yield page


@pytest.fixture
def page(visited: ManagementPage) -> Iterator[ManagementPage]:
    yield visited
    assert visited.faults() == []
    visited.visit.check()


def put(http: httpx.Client, path: str, **body: Any) -> None:
    http.put(path, json=body).raise_for_status()


def get(http: httpx.Client, path: str) -> Any:
    return http.get(path).raise_for_status().json()


def bodies(http: httpx.Client, queue: str) -> list[str]:
    wanted = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
    return [each["payload"] for each in http.post(f"queues/%2F/{queue}/get", json=wanted).json()]


@pytest.mark.parametrize(
    "kind", ["stream", *(pytest.param(kind, marks=pytest.mark.story) for kind in ("classic", "quorum"))]
)
def test_a_queue_of_each_type_is_added_and_deleted(
    page: ManagementPage, http: httpx.Client, kind: str
) -> None:
    page.open("queues")
    page.page.select_option("select[name=queuetype]", kind)
    page.open("queues")
    page.argument("Add queue", "x-max-length-bytes", "1000000", "number")
    page.submit("Add queue", {"name": f"a {kind}"})
    added = get(http, f"queues/%2F/a%20{kind}")
    assert (added["type"], added["durable"]) == (kind, True)
    assert added["arguments"] == {"x-queue-type": kind, "x-max-length-bytes": 1_000_000}
    page.open("queues", "/", f"a {kind}")
    page.submit("Delete Queue")
    assert page.questions[-1].startswith("Are you sure? The queue is going to be deleted.")
    assert http.get(f"queues/%2F/a%20{kind}").status_code == 404
    assert page.page.url.endswith("#/queues")


def test_an_exchange_is_added_bound_unbound_and_deleted(page: ManagementPage, http: httpx.Client) -> None:
    put(http, "queues/%2F/bound")
    page.open("exchanges")
    page.argument("Add exchange", "alternate-exchange", "amq.fanout")
    page.submit("Add exchange", {"name": "x", "type": "topic"})
    assert get(http, "exchanges/%2F/x")["arguments"] == {"alternate-exchange": "amq.fanout"}
    page.open("exchanges", "/", "x")
    page.argument("Bind", "k", "v")
    page.submit("Bind", {"destination": "bound", "routing_key": "a.#"})
    page.open("exchanges", "/", "x")
    page.submit("Bind", {"destination_type": "e", "destination": "amq.fanout", "routing_key": "b"})
    page.open("queues", "/", "bound")
    page.submit("Bind", {"source": "x", "routing_key": "c"})
    found = get(http, "exchanges/%2F/x/bindings/source")
    assert sorted((each["destination"], each["routing_key"], each["arguments"]) for each in found) == [
        ("amq.fanout", "b", {}),
        ("bound", "a.#", {"k": "v"}),
        ("bound", "c", {}),
    ]
    for left in (2, 1, 0):
        page.open("exchanges", "/", "x")
        page.submit("Unbind")
        assert len(get(http, "exchanges/%2F/x/bindings/source")) == left
    page.open("exchanges", "/", "x")
    page.submit("Delete")
    assert http.get("exchanges/%2F/x").status_code == 404


def test_messages_are_published_got_in_every_way_and_purged(page: ManagementPage, http: httpx.Client) -> None:
    put(http, "queues/%2F/m")
    put(http, "exchanges/%2F/mx", type="fanout")
    http.post("bindings/%2F/e/mx/q/m", json={}).raise_for_status()
    page.open("exchanges", "/", "mx")
    page.argument("Publish message", "h1", "5", "number", prefix="headers")
    page.argument("Publish message", "content_type", "text/plain", prefix="props")
    page.submit("Publish message", {"payload": "<b>bold</b> ünïcode"})
    assert page.popup() == "Message published."
    page.open("queues", "/", "m")
    page.submit("Publish message", {"payload": "AAECgA==", "payload_encoding": "base64"})
    assert page.popup() == "Message published."
    for mode, count in {"ack_requeue_true": 2, "reject_requeue_true": 2, "ack_requeue_false": 1}.items():
        page.submit("Get Message(s)", {"ackmode": mode, "count": "2" if count == 2 else "1"})
        expect(page.page.locator("#msg-wrapper > .box")).to_have_count(count)
        shown = page.text("#msg-wrapper")
        assert "<b>bold</b> ünïcode" in shown
        assert "text/plain" in shown
        assert ("AAECgA==" in shown) is (count == 2)
        page.page.wait_for_function("() => !$(':animated').length")
    page.submit("Get Message(s)", {"ackmode": "reject_requeue_false", "count": "1", "encoding": "base64"})
    expect(page.page.locator("#msg-wrapper")).to_contain_text("AAECgA==")
    page.submit("Get Message(s)", {"ackmode": "ack_requeue_false", "count": "5"})
    assert page.popup() == "Queue is empty"
    page.submit("Publish message", {"payload": "x", "payload_encoding": "string"})
    page.popup()
    page.submit("Purge Messages")
    assert page.popup() == "Queue purged"
    assert bodies(http, "m") == []


def test_a_message_that_goes_nowhere_is_said_to(page: ManagementPage) -> None:
    page.open("exchanges", "/", "amq.direct")
    page.submit("Publish message", {"routing_key": "nobody", "payload": "x"})
    assert page.popup("warn") == "Message published, but not routed."


def test_a_user_is_added_changed_and_deleted(
    page: ManagementPage, http: httpx.Client, broker: Broker
) -> None:
    page.open("users")
    page.submit(
        "Add user", {"username": "u 1", "password": "pw", "password_confirm": "pw", "tags": "management"}
    )
    page.open("users")
    page.submit("Add user", {"username": "u2", "has-password": "no-password"})
    page.open("users", "u 1")
    page.submit("Set permission", {"vhost": "/", "configure": "^a"})
    page.open("users", "u 1")
    page.submit("Set topic permission", {"exchange": "amq.topic", "write": "^w"})
    assert get(http, "permissions/%2F/u%201")["configure"] == "^a"
    assert get(http, "topic-permissions/%2F/u%201")[0]["write"] == "^w"
    page.open("users", "u 1")
    page.submit("Update user", {"password": "new", "password_confirm": "new", "tags": "monitoring"})
    with client_of(broker, "u 1", "new") as own:
        assert get(own, "whoami") == {"name": "u 1", "tags": ["monitoring"]}
    for clearing in ("permissions", "topic-permissions"):
        page.open("users", "u 1")
        page.submit("Clear", action=clearing)
        assert not [each for each in get(http, clearing) if each["user"] == "u 1"]
    for user in ("u 1", "u2"):
        page.open("users", user)
        page.submit("Delete")
    assert [each["name"] for each in get(http, "users")] == ["guest"]


@pytest.mark.story
def test_the_history_of_rates_is_forgotten(page: ManagementPage, http: httpx.Client) -> None:
    page.open("")
    page.submit("This node")
    page.open("")
    page.submit("All nodes")
    page.open("")
    assert all(page.charts().values())


@pytest.mark.story
def test_definitions_are_stored_as_a_file_and_read_back(page: ManagementPage, http: httpx.Client) -> None:
    put(http, "queues/%2F/kept")
    page.open("")
    with page.page.expect_download() as stored:
        page.page.click("#download-definitions")
    document = json.loads(Path(stored.value.path()).read_text())
    assert "kept" in [each["name"] for each in document["queues"]]
    http.delete("queues/%2F/kept").raise_for_status()
    file = {"name": "all.json", "mimeType": "application/json", "buffer": json.dumps(document).encode()}
    page.open("")
    page.page.locator("input[type=file]").set_input_files(file)  # type: ignore[arg-type]
    page.page.get_by_text("Upload broker definitions").click()
    assert page.popup() == "Your definitions were imported successfully."
    assert get(http, "queues/%2F/kept")["durable"] is False


def test_a_connection_is_closed_with_its_reason(
    page: ManagementPage, http: httpx.Client, broker: Broker
) -> None:
    connection = broker.connect()
    try:
        wait_until(lambda: bool(get(http, "connections")), "the connection", SHOWN_S)
        page.open("connections", get(http, "connections")[0]["name"])
        page.submit("Force Close", {"reason": "go away"})
        with pytest.raises(ConnectionClosedByBroker, match="go away"):
            connection.process_data_events(SHOWN_S)
    finally:
        if connection.is_open:
            connection.close()


def test_what_is_refused_is_said_in_a_window_and_changes_nothing(
    page: ManagementPage, http: httpx.Client
) -> None:
    put(http, "queues/%2F/there", durable=True)
    page.visit.expect(r"answered 400: PUT \S+/api/queues/%2F/there")
    page.open("queues")
    page.page.select_option("select[name=queuetype]", "classic")
    page.open("queues")
    form = page.form("Add queue")
    form.locator("[name=name]").fill("there")
    form.locator("[name=durable]").select_option("false")
    form.locator("input[type=submit]").click()
    assert "inequivalent arg 'durable' for queue 'there' in vhost '/'" in page.popup("warn")
    assert get(http, "queues/%2F/there")["durable"] is True


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script><img src=x onerror=alert(1)>",
        pytest.param("&\"'\u202e%2F/ #?", marks=pytest.mark.story),
        pytest.param("ü" * 127, marks=pytest.mark.story),
    ],
)
def test_names_are_shown_as_text_whatever_they_are(
    page: ManagementPage, http: httpx.Client, name: str
) -> None:
    asked = len(page.questions)
    page.open("queues")
    page.page.select_option("select[name=queuetype]", "classic")
    page.open("queues")
    page.submit("Add queue", {"name": name})
    page.open("exchanges")
    page.submit("Add exchange", {"name": name})
    page.open("exchanges", "/", name)
    page.submit("Bind", {"destination": name, "routing_key": name})
    page.open("queues")
    assert name in page.column("Name")
    for path in (("queues", "/", name), ("exchanges", "/", name), ("exchanges",), ("",)):
        page.open(*path)
        page.refresh()
        assert page.page.locator("#main script, #main img[src=x]").count() == 0
        assert page.faults() == []
    page.open("queues", "/", name)
    assert name in page.text("h1")
    page.submit("Publish message", {"payload": name})
    page.popup()
    page.submit("Get Message(s)", {"ackmode": "ack_requeue_false", "count": "1"})
    expect(page.page.locator("#msg-wrapper pre").first).to_contain_text(name.strip())
    page.submit("Delete Queue")
    assert [each for each in page.questions[asked:] if each.startswith("1")] == []


def test_a_page_that_was_left_open_says_that_its_node_is_gone(chromium: Chromium) -> None:
    with serving(LEVERET) as broker, chromium.visit(checked=False) as visit:
        page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
        page.log_in("guest", "guest")
        broker.ctl("stop", check=False)
        page.page.evaluate("partial_update()")
        expect(page.page.locator("#status")).to_contain_text("could not connect", ignore_case=True)
        assert all("ERR_CONNECTION_REFUSED" in line for line in _lines(visit))


def _lines(visit: Visit) -> list[str]:
    return visit.troubles

"""Log-in at RabbitMQ's management page: users of each tag see what is theirs, without a refusal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from leveret.testing.servers.chromium import Chromium, Visit
from tests.browser.management_page import FILES, ManagementPage
from tests.browser.management_scene import declare, serving
from tests.conformance.brokers import LEVERET, Broker, running

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(900)]

TABS = {
    "administrator": "Overview Connections Channels Exchanges Queues Admin Stream",
    "monitoring": "Overview Connections Channels Exchanges Queues Admin Stream",
    "policymaker": "Overview Connections Channels Exchanges Queues Admin",
    "management": "Overview Connections Channels Exchanges Queues Admin",
}
ADMIN = {
    "administrator": "Users Virtual Hosts Feature Flags Policies Limits Cluster",
    "monitoring": "Policies Limits",
    "policymaker": "Policies Limits",
    "management": "Policies Limits",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with serving(LEVERET) as broker:
        declare(broker)
        with broker.connect() as connection:
            connection.channel()
            yield broker


# By hand: users with rights between those, whose requests tests/conformance/test_http_access.py has.
BETWEEN = [pytest.param(user, marks=pytest.mark.torture) for user in ("monitoring", "policymaker")]


@pytest.mark.parametrize(
    "user", ["management", pytest.param("administrator", marks=pytest.mark.story), *BETWEEN]
)
def test_a_user_of_each_tag_sees_the_pages_that_are_theirs(visit: Visit, broker: Broker, user: str) -> None:
    page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
    page.log_in(user, user)
    assert " ".join(page.text("#tabs").split()).replace(" and Streams", "") == TABS[user]
    for path in (
        ("connections",),
        ("channels",),
        ("exchanges",),
        ("queues",),
        ("queues", "/", "classic"),
        ("",),
    ):
        page.open(*path)
        page.refresh()
        assert (path, page.faults()) == (path, [])
    visit.check()
    page.open("policies")
    assert " ".join(page.text("#rhs").split()).replace("Deprecated Features ", "") == ADMIN[user]
    page.log_out()


def test_a_user_without_a_tag_and_a_wrong_password_are_told(visit: Visit, broker: Broker) -> None:
    page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
    visit.expect(r"answered 401: \w+ \S+/api/(whoami|login)")
    page.page.goto(f"http://127.0.0.1:{broker.management_port}/")
    for user, password in {"none": "none", "guest": "wrong", "nobody": ""}.items():
        page.type_login(user, password)
        expect(page.page.locator("#login-status")).to_have_text("Login failed")
        page.page.evaluate("$('#login-status').empty()")
    page.log_in("guest", "guest")
    assert "guest" in page.text("#logout")


def test_who_logged_out_has_to_log_in_again(visit: Visit, broker: Broker) -> None:
    page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
    page.log_in("guest", "guest")
    page.page.reload()
    expect(page.page.locator("#main h1")).to_have_text("Overview")
    page.log_out()
    page.page.reload()
    expect(page.page.locator("input[name=password]")).to_be_visible()
    assert visit.page.context.cookies() == [] or "auth" not in str(visit.page.context.cookies())


@pytest.mark.story
def test_who_logs_out_while_the_page_polls_is_logged_out_without_a_trouble(
    visit: Visit, broker: Broker
) -> None:
    page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
    page.log_in("guest", "guest")
    # As after a moment in which the machine had no time for the page: a poll is due whenever one may be.
    page.page.evaluate("setInterval(() => partial_update(), 20)")
    page.log_out()
    visit.check()


def test_the_page_works_behind_a_prefix(chromium: Chromium) -> None:
    config = {"management.ui.path": FILES, "management.path_prefix": "/rabbit"}
    with running(LEVERET, config) as broker, chromium.visit() as visit:
        page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}/rabbit")
        page.log_in("guest", "guest")
        page.open("queues")
        assert page.faults() == []

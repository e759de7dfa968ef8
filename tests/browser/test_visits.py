"""The browser of the tests itself: what goes wrong in a page is noticed."""

from __future__ import annotations

import pytest

from leveret.testing.network.ports import LOOPBACK, free_ports
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.chromium import Chromium, Visit

FAULTY = {
    "<script>nobody.knows</script>": "script failed: nobody is not defined",
    "<script>console.error('NaN of 3')</script>": "console: NaN of 3",
    "<img src='http://192.0.2.1/logo.png'>": "asked another machine: GET http://192.0.2.1/logo.png",
}


@pytest.mark.parametrize("page", FAULTY)
def test_a_page_with_a_fault_does_not_pass(chromium: Chromium, page: str) -> None:
    with pytest.raises(AssertionError) as failed, chromium.visit() as visit:
        visit.page.set_content(page, wait_until="domcontentloaded")
    assert FAULTY[page] in str(failed.value)


def test_a_listener_that_is_not_there_is_noticed(chromium: Chromium) -> None:
    [port] = free_ports(1)
    with (
        pytest.raises(AssertionError, match="no answer, net::ERR_CONNECTION_REFUSED"),
        chromium.visit() as visit,
    ):
        visit.page.set_content(f"<img src='http://{LOOPBACK}:{port}/logo.png'>")


def test_a_refused_request_is_noticed_unless_the_test_is_about_it(chromium: Chromium) -> None:
    with LeveretProcess() as node:
        url = f"http://{LOOPBACK}:{node.management_port}/nothing"
        with pytest.raises(AssertionError, match="answered 404: GET"), chromium.visit() as visit:
            visit.page.goto(url)
        with chromium.visit() as visit:
            visit.expect(r"answered 404: GET \S+/nothing")
            visit.page.goto(url)


def test_two_visits_share_no_cookie(chromium: Chromium, visit: Visit) -> None:
    with LeveretProcess() as node, chromium.visit() as other:
        for each in (visit, other):
            each.expect("answered 404")
            each.page.goto(f"http://{LOOPBACK}:{node.management_port}/nothing")
        visit.page.evaluate("document.cookie = 'me=1'")
        assert visit.page.evaluate("document.cookie") == "me=1"
        assert other.page.evaluate("document.cookie") == ""

"""The console and followers: a delayed one that leads as of a moment, and a comparison that takes its time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.chromium import Visit
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from tests.browser.console_visit import look_at, press_until
from tests.e2e.follower_clients import bodies, channel_at, declare, numbered, publish

SLOW_MS = 60_000
SEGMENT_BYTES = 65_536


def urls(site: FollowerSite) -> dict[str, str]:
    nodes = {"first": site.leader, "second": site.followers[0]}
    return {name: f"http://{LOOPBACK}:{each.node.management_port}" for name, each in nodes.items()}


def delayed(site: FollowerSite) -> FollowerSiteNode:
    """A follower that can leave out what its leader does from now on; a message was there before."""
    [follower] = site.followers
    site.leader.lead()
    declare(site.leader, "orders")
    publish(site.leader, "orders", numbered(0, 1))
    follower.node.config["replication.apply_delay"] = "1h"
    follower.follow(site.leader)
    wait_until(lambda: follower.status()["state"] == "delayed", "a delayed follower", PATIENCE_S)
    return follower


def test_a_delayed_follower_leads_as_of_a_moment_that_is_chosen_by_keyboard_and_previewed(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    with FollowerSite(tmp_path) as site:
        follower = delayed(site)
        publish(site.leader, "orders", numbered(1, 9))
        with channel_at(site.leader) as channel:
            channel.queue_purge("orders")
        wait_until(lambda: held_back(follower) == 9, "nine messages held back", PATIENCE_S)
        with ConsoleProcess(urls(site)) as console:
            look_at(page, console, "do")
            second = page.get_by_role("region", name="second", exact=True)
            expect(second).to_contain_text("Promotion of the follower …", timeout=SLOW_MS)
            press_until(page, "Tab", "Promotion of the follower …")
            page.keyboard.press("Enter")
            expect(second.locator(".forecast")).to_contain_text("can leave out")
            press_until(page, "Tab", "slider")
            # All but the purge, which was the last.
            page.keyboard.press("End")
            page.keyboard.press("Home")
            first = second.get_by_label("Moment").input_value()
            page.keyboard.press("End")
            last = second.get_by_label("Moment").input_value()
            assert first < last
            press_until(page, "Tab", "Preview")
            page.keyboard.press("Enter")
            preview = second.locator(".preview")
            expect(preview).to_contain_text("held back messages0", timeout=SLOW_MS)
            press_until(page, "Shift+Tab", "slider")
            page.keyboard.press("Home")
            assert second.get_by_label("Moment").input_value() == first
            press_until(page, "Tab", "Preview")
            page.keyboard.press("Enter")
            expect(preview).to_contain_text("held back messages9", timeout=SLOW_MS)
            assert follower.status()["role"] == "follower"
            press_until(page, "Tab", "typed-word")
            page.keyboard.type("second")
            page.keyboard.press("Enter")
            done = page.get_by_role("article", name="Promotion of the follower at second", exact=True)
            expect(done).to_contain_text("✓ done", timeout=SLOW_MS)
            expect(done).to_contain_text(f"apply_until: {first}")
            follower.node.wait_ready()
            assert bodies(follower, "orders") == numbered(0, 1)
            # What was left out is there to be looked at.
            page.get_by_role("link", name="History").click()
            line = page.locator("ol.line li", has_text="9 divergent messages were quarantined")
            expect(line).to_be_visible(timeout=SLOW_MS)


def held_back(follower: FollowerSiteNode) -> int:
    return int(follower.status()["leader"]["held_back"]["messages"])


@pytest.mark.story
def test_a_comparison_shows_how_far_it_is_and_a_moment_that_is_none_is_refused(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    with FollowerSite(tmp_path, config={"segment_bytes_max": str(SEGMENT_BYTES)}) as site:
        site.start()
        declare(site.leader, "orders")
        publish(site.leader, "orders", numbered(0, 60, SEGMENT_BYTES // 2))
        site.wait_even()
        with ConsoleProcess(urls(site)) as console:
            look_at(page, console, "do")
            first = page.get_by_role("region", name="first", exact=True)
            site.followers[0].link.delay_s = 0.2
            first.get_by_role("button", name="Compare with followers …").click(timeout=SLOW_MS)
            first.get_by_label("Read all that is stored").check()
            first.locator("button.main").click()
            job = page.get_by_role("article", name="Compare with followers at first")
            progress = job.locator(".progress")
            expect(progress).to_contain_text("kB of 2.0 MB", timeout=SLOW_MS)
            # It is the site that tells how far it is, to whoever asks.
            verifying = site.leader.status()["verify"]
            assert 0 < verifying["octets_done"] < verifying["octets_total"]
            # One comparison at a time is offered.
            expect(first.get_by_role("button", name="Compare with followers …")).to_have_count(0)
            expect(job).to_contain_text("✓ done", timeout=SLOW_MS)
            expect(job.locator("tr", has_text="orders").locator("td[data-label='match']")).to_have_text("yes")
            visit.expect("answered 400: POST")
            second = {"site": "second", "action": "promote_follower", "word": "second"}
            refused = page.evaluate(
                """async (wanted) => (await (await fetch("/jobs", {method: "POST",
                   headers: {"content-type": "application/json"}, body: wanted})).json()).error""",
                json.dumps({**second, "given": {"apply_until": "yesterday"}}),
            )
            assert "'yesterday' is no time such as" in refused

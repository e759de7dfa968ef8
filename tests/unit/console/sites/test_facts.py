from __future__ import annotations

from leveret.console.sites.documents import Overview
from leveret.console.sites.facts import HEARD_MS, OFTEN, SiteFacts

OVERVIEW = next(question for question in OFTEN if question.name == "overview")


def test_a_site_is_heard_for_a_while_after_its_last_answer() -> None:
    facts = SiteFacts("eu")
    assert not facts.is_heard(0)
    assert facts.age_ms(5) is None
    facts.take(OVERVIEW, Overview(cluster_name="eu.1"), 1_000)
    assert facts.is_heard(1_000 + HEARD_MS - 1)
    assert not facts.is_heard(1_000 + HEARD_MS)
    assert not facts.is_heard(1_000 - 3_600_000), "the time of day was set back, and nobody answers"
    assert facts.age_ms(3_000) == 2_000


def test_what_was_heard_stays_when_a_site_falls_silent_and_it_is_alive_anew_later() -> None:
    facts = SiteFacts("eu")
    facts.take(OVERVIEW, Overview(cluster_name="eu.1"), 1_000)
    facts.silent("no connection")
    assert (facts.overview.cluster_name, facts.alive_since_ms, facts.error) == ("eu.1", None, "no connection")
    facts.take(OVERVIEW, None, 9_000)
    assert (facts.overview.cluster_name, facts.alive_since_ms, facts.error) == ("eu.1", 9_000, "")

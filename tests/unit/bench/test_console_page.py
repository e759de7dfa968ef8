from __future__ import annotations

import pytest

from bench.console_page import CONSOLE_PAGE, PAGES, SixSites
from bench.rows import Settings
from leveret.testing.servers import chromium

pytestmark = [
    pytest.mark.process,
    pytest.mark.browser,
    pytest.mark.skipif(chromium.available() is not None, reason=str(chromium.available())),
]


def test_each_page_stands_after_the_log_in_and_its_cost_is_told(tiny: Settings) -> None:
    sites = SixSites(tiny.folder)
    try:
        sites.start()
        readings = CONSOLE_PAGE.run(sites, tiny)
    finally:
        sites.close()
    assert set(readings) == {f"console-{name}" for name in PAGES}
    for reading in readings.values():
        assert reading.value > 0
        assert reading.details["console_s"] > 0
        assert 0 < reading.details["page_scripts_s"] < reading.details["page_s"]

from __future__ import annotations

import pytest

from tests.suites.catalogue import SUITES
from tests.suites.fetch import BUILD_TOOLS, LOCK
from tests.suites.lock import LockError, extract, read_lock

AMQP = "amqp==5.4.2 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb"
TZDATA = "tzdata==2026.6 ; sys_platform == 'win32' \\\n    --hash=sha256:cc"


def test_an_entry_is_kept_as_pip_reads_it() -> None:
    packages = read_lock(f"# written by a tool\n\n{AMQP}\n{TZDATA}\n")
    assert {name: locked.version for name, locked in packages.items()} == {
        "amqp": "5.4.2",
        "tzdata": "2026.6",
    }
    assert packages["tzdata"].text == TZDATA


def test_a_part_of_a_lock_is_a_lock() -> None:
    packages = read_lock(f"{AMQP}\n{TZDATA}\n")
    assert extract(packages, ("tzdata",)) == f"{TZDATA}\n"
    assert read_lock(extract(packages, ("tzdata", "amqp"))).keys() == {"amqp", "tzdata"}


def test_a_part_that_is_not_in_the_lock_is_named() -> None:
    with pytest.raises(LockError, match=r"not in the lock: rstream;"):
        extract(read_lock(AMQP), ("amqp", "rstream"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{AMQP}\nkombu>=5 \\\n    --hash=sha256:dd\n", "line 4: 'kombu>=5 .*' is no name==version"),
        (f"{AMQP}\nkombu==5.7.0\n", "line 4: kombu has no hash"),
        (f"{AMQP}\n{AMQP}\n", "line 4: amqp is locked a second time"),
        ("amqp==5.4.2 \\\n", "line 1: the lock ends in the middle of an entry"),
    ],
)
def test_what_pip_would_not_hold_to_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(LockError, match=message):
        read_lock(text)


def test_the_lock_has_every_suite_and_what_builds_it() -> None:
    packages = read_lock(LOCK.read_text())
    wanted = {suite.package for suite in SUITES if suite.package} | set(BUILD_TOOLS)
    assert wanted <= packages.keys()

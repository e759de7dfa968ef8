from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.suites.languages.catalogue import SUITES
from tests.suites.languages.sources import LOCKS


def test_a_machine_without_a_language_is_told_what_it_lacks() -> None:
    suite = replace(
        SUITES[0], needs={"sh": "dash", "no-such-program": "some-package", "/no/such/file": "other"}
    )
    assert (
        suite.lacking()
        == "this machine lacks no-such-program (package some-package), /no/such/file (package other)"
    )
    assert replace(suite, needs={"sh": "dash"}).lacking() == ""


@pytest.mark.parametrize("folder", sorted(LOCKS.iterdir()), ids=lambda folder: folder.name)
def test_a_lock_of_npm_has_a_hash_for_each_package_and_names_no_host(folder: object) -> None:
    text = (LOCKS / str(folder) / "package-lock.json").read_text()
    assert '"resolved"' not in text
    packages = json.loads(text)["packages"]
    assert all("integrity" in package for path, package in packages.items() if path)

"""What the runners of other languages write about their tests, as results by test. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from tests.suites.run import Ended, Outcome, Results

_TEXT_CHARS = 2000
_TAP = re.compile(r"^(?P<failed>not )?ok\s*(?P<number>\d*)\s*-?\s*(?P<name>[^#\n]*)(?P<directive>#.*)?$")


def of_junit(text: str) -> Results:
    """Read JUnit's XML, in which suites may be nested: a test is named by its suites and its own name."""
    results: Results = {}
    for names, case in _cases(ElementTree.fromstring(text), ()):
        _put(results, " > ".join(names), *_junit_outcome(case))
    return results


def _cases(
    element: ElementTree.Element, names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ElementTree.Element]]:
    for child in element:
        name = child.get("name", "")
        if name.startswith("/"):  # node reports a file without tests as a test
            name = name.rpartition("/")[2]
        if child.tag == "testsuite":
            yield from _cases(child, (*names, name))
        elif child.tag == "testcase":
            classname = child.get("classname", "")
            inner = () if classname in ("", "test", *names) else (classname,)
            yield (*names, *inner, name), child


def _junit_outcome(case: ElementTree.Element) -> tuple[Outcome, str]:
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            return "failed", f"{found.get('message', '')}\n{found.text or ''}".strip()
    found = case.find("skipped")
    return ("passed", "") if found is None else ("skipped", found.get("message", ""))


def of_go(text: str) -> Results:
    """Read the lines of `go test -json`; tests that did not end when the program did have failed."""
    results: Results = {}
    output: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        test = event.get("Test")
        if test is None:
            continue
        said = output.setdefault(test, [])
        if event["Action"] == "output":
            said.append(event["Output"])
        elif event["Action"] in ("pass", "fail", "skip"):
            del output[test]
            outcome: Outcome = {"pass": "passed", "fail": "failed", "skip": "skipped"}[event["Action"]]  # type: ignore[assignment]
            _put(results, test, outcome, "" if outcome == "passed" else "".join(said))
    for test, said in output.items():
        _put(results, test, "failed", "did not end: " + "".join(said))
    return results


def of_tap(text: str) -> Results:
    """Read the lines of the Test Anything Protocol; a test without a name is named by its number."""
    results: Results = {}
    for line in text.splitlines():
        found = _TAP.match(line)
        if found is None:
            continue
        directive = (found["directive"] or "").lower()
        outcome: Outcome = "failed" if found["failed"] else "passed"
        if "skip" in directive or "todo" in directive:
            outcome = "skipped"
        _put(results, found["name"].strip() or found["number"], outcome, directive)
    return results


def _put(results: Results, test: str, outcome: Outcome, text: str) -> None:
    """Add a result; a second test of one name gets a number."""
    name, number = test, 1
    while name in results:
        number += 1
        name = f"{test} ({number})"
    results[name] = Ended(outcome, text[-_TEXT_CHARS:])

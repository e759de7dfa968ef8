from __future__ import annotations

from pathlib import Path

import documents
import pytest

TESTED = "def test_a_node_starts() -> None: ...\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one document to write, one to refer to, and one test."""
    (tmp_path / "docs/adr").mkdir(parents=True)
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "docs/other.md").write_text("# Other\n\n## A `key`, and more\n\n## Twice\n\n## Twice\n\n")
    (tmp_path / "tests/unit/test_node.py").write_text(TESTED)
    return tmp_path


def found(project: Path, text: str, name: str = "docs/page.md") -> list[str]:
    (project / name).write_text(text)
    return list(documents.findings(project, Path(name)))


@pytest.mark.parametrize(
    "text",
    [
        "[other](other.md)",
        "[heading](other.md#a-key-and-more)",
        "[second of two](other.md#twice-1)",
        "# Own\n\n[own](#own)",
        "[source](../tests/unit/test_node.py)",
        "[elsewhere](https://example.com/no/such/page)",
        "```\n[not a link](nowhere.md)\n```",
        "`unit/test_node.py` `tests/unit/test_node.py` `test_node.py`",
        "`unit/test_node.py::a_node_starts` `::test_a_node_starts`",
        "| a | b |\n|---|---|\n| x | `unit/test_node.py::a_node_starts` |",
        "`test_a_node_starts`",
    ],
)
def test_a_reference_that_leads_somewhere_is_accepted(project: Path, text: str) -> None:
    assert found(project, text) == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("[gone](gone.md)", "docs/page.md:1: gone.md: there is no such file"),
        ("text\n\n[x](other.md#gone)", "docs/page.md:3: other.md#gone: other.md has no such heading"),
        ("[x](other.md#twice-2)", "docs/page.md:1: other.md#twice-2: other.md has no such heading"),
        ("[x](#gone)", "docs/page.md:1: #gone: page.md has no such heading"),
        ("[directory](adr)", "docs/page.md:1: adr: there is no such file"),
        ("[out](../../README.md)", "docs/page.md:1: ../../README.md: there is no such file"),
        ("| a |\n|---|\n| [x](gone.md) |", "docs/page.md:3: gone.md: there is no such file"),
        ("`unit/test_gone.py`", "docs/page.md:1: unit/test_gone.py: there is no such test file"),
        ("`e2e/test_node.py`", "docs/page.md:1: e2e/test_node.py: there is no such test file"),
        (
            "`unit/test_node.py::it_stops`",
            "docs/page.md:1: unit/test_node.py::it_stops: test_node.py has no such test",
        ),
        (
            "`unit/test_node.py::a_node_starts`, `::it_stops`",
            "docs/page.md:1: ::it_stops: test_node.py has no such test",
        ),
        ("`test_it_stops`", "docs/page.md:1: test_it_stops: there is no such test"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named_with_its_line(
    project: Path, text: str, finding: str
) -> None:
    assert found(project, text) == [finding]


def test_a_decision_keeps_the_names_of_its_day_and_its_links_are_checked(project: Path) -> None:
    text = "`unit/test_gone.py` [gone](gone.md)"
    assert found(project, text, "docs/adr/0001-x.md") == [
        "docs/adr/0001-x.md:1: gone.md: there is no such file"
    ]


def test_a_page_has_a_place_in_the_navigation_of_the_site(project: Path) -> None:
    (project / "docs/conf.py").write_text('NAVIGATION = {"All": ["docs/other"]}\n')
    (project / "docs/adr/0001-first.md").write_text("# First\n")
    assert list(documents.pages_without_a_place(project)) == []
    (project / "docs/page.md").write_text("# Page\n")
    assert list(documents.pages_without_a_place(project)) == [
        "docs/page.md:1: NAVIGATION in docs/conf.py does not name this page"
    ]

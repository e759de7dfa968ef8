"""How `make docs` makes a site of the project's Markdown files, each at its own place.

The files are plain Markdown, as a forge shows them: relative links work on both, and the order of the pages is here.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The title of each part of the navigation, and its pages in their order.
NAVIGATION = {
    "First steps": [
        "docs/start",
        "docs/coming-from-rabbitmq",
        "docs/coming-from-lavinmq",
        "packaging/README",
    ],
    "More than one machine": ["docs/followers", "docs/cluster"],
    "More than one site": [
        "docs/schema-replication",
        "docs/warm-standby",
        "docs/standby-recovery",
        "docs/standby-tables",
        "docs/spark-cluster",
    ],
    "Operations": ["docs/operations", "docs/console", "docs/commands", "docs/configuration"],
    "What holds": [
        "docs/conformance",
        "docs/deviations",
        "docs/reliability",
        "docs/campaigns",
        "docs/faults",
        "docs/mutants",
        "docs/performance",
        "docs/seeds",
    ],
    "How it is built": ["ARCHITECTURE", "docs/adr/README", "CONTRIBUTING"],
}

project = "Leveret"
release = version = PROJECT["version"]
copyright = PROJECT["license"]  # Sphinx's own name
language = "en"

root_doc = "README"
include_patterns = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "packaging/*.md",
    "docs/*.md",
    "docs/adr/*.md",
]
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "bench", "requirements"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_linkify_fuzzy_links = False
# A code block is of the language that its fence names, and of none without a name.
highlight_language = "none"
# Both are reported for good Markdown: a table's heading cell may be empty, a fence may hold a mere excerpt.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"Leveret {version}"
html_copy_source = False
html_show_sphinx = False


def toctree(title: str, pages: list[str]) -> str:
    """One part of the navigation, as the generator's syntax."""
    return "\n".join(
        ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *(f"/{page}" for page in pages), "```", ""]
    )


def add_navigation(_app: Any, page: str, source: list[str]) -> None:
    """Append the navigation to the first page, and the decisions to theirs, while they are read."""
    if page == root_doc:
        source[0] += "".join(toctree(title, pages) for title, pages in NAVIGATION.items())
    elif page == "docs/adr/README":
        decisions = sorted(path.stem for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
        source[0] += toctree("Decisions", [f"docs/adr/{name}" for name in decisions])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)

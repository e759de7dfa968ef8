"""Checks what the documents refer to: links, anchors, and the tests that they name.

`make check` runs it. A relative link has to lead to a file or directory of the project, and its anchor to a heading,
spelled as GitHub spells it. A test file or test function named in `code` has to exist. Decisions (docs/adr) are not
edited once accepted, so only their links are checked. Every page of the site has a place in its navigation.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

PATTERNS = ("*.md", "docs/**/*.md", "packaging/*.md")
DECISIONS = Path("docs/adr")
NAVIGATION = Path("docs/conf.py")
# Test functions of other projects, by name.
FOREIGN_TESTS = Path("docs/conformance.md")

TEST_FILE = re.compile(r"(?:tests/)?((?:\w+/)*test_\w+\.py)")
TEST_NAME = re.compile(r"::(\w+)")
LONE_TEST = re.compile(r"test_\w+")


@cache
def tokens_of(path: Path) -> list[Token]:
    """The document's blocks in their order; text is in the children of `inline` ones."""
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def anchors_of(path: Path) -> set[str]:
    """What a link may write behind `#`: the slug of each heading, with `-1`, `-2` for repeated ones."""
    anchors: set[str] = set()
    seen: Counter[str] = Counter()
    tokens = tokens_of(path)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type != "heading_open":
            continue
        text = "".join(
            child.content for child in inline.children or () if child.type in ("text", "code_inline")
        )
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


def inline_of(path: Path) -> Iterator[tuple[int, Token]]:
    """Each piece of text, code or link, with the first line of its paragraph or table row."""
    for block in tokens_of(path):
        if block.type == "inline":
            line = block.map[0] + 1 if block.map else 1
            yield from ((line, child) for child in block.children or ())


def code_blocks(path: Path) -> Iterator[str]:
    """The text of each code block, indented or fenced."""
    return (token.content for token in tokens_of(path) if token.type in ("code_block", "fence"))


def broken_link(root: Path, document: Path, target: str) -> str | None:
    """Why a link of a document leads nowhere; None for one that does, or that leaves the project."""
    if re.match(r"[a-z]+:", target):
        return None
    place, _, anchor = unquote(target).partition("#")
    path = (root / document).parent / place if place else root / document
    if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
        return f"{target}: there is no such file"
    if anchor and (path.suffix != ".md" or anchor not in anchors_of(path)):
        return f"{target}: {path.name} has no such heading"
    return None


@cache
def functions_of(path: Path) -> frozenset[str]:
    """The names of all functions of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"), path)
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@cache
def test_files(root: Path) -> frozenset[Path]:
    """Every test file of the project."""
    return frozenset((root / "tests").rglob("test_*.py"))


def missing_tests(root: Path, codes: list[str]) -> Iterator[str]:
    """Tests that the `code` of one paragraph names and that do not exist.

    `::name` belongs to the file named last. A file without directories may be anywhere below tests/, and the
    `test_` of a function may be left out.
    """
    files: list[Path] = []
    for code in codes:
        if named := TEST_FILE.match(code):
            files = [path for path in test_files(root) if path.as_posix().endswith(f"/{named[1]}")]
            if not files:
                yield f"{named[1]}: there is no such test file"
        if (function := TEST_NAME.search(code)) and (named or code.startswith("::")) and files:
            wanted = {function[1], f"test_{function[1]}"}
            if not any(wanted & functions_of(path) for path in files):
                yield f"{code}: {files[0].name} has no such test"
        elif LONE_TEST.fullmatch(code) and not any(code in functions_of(path) for path in test_files(root)):
            yield f"{code}: there is no such test"


def findings(root: Path, document: Path) -> Iterator[str]:
    """Everything wrong with one document, as `path:line: text`."""
    codes: dict[int, list[str]] = {}
    for line, token in inline_of(root / document):
        if token.type == "link_open":
            broken = broken_link(root, document, str(token.attrs["href"]))
            if broken:
                yield f"{document}:{line}: {broken}"
        elif token.type == "code_inline":
            codes.setdefault(line, []).append(token.content)
    if document.is_relative_to(DECISIONS) or document == FOREIGN_TESTS:
        return
    for line, named in codes.items():
        yield from (f"{document}:{line}: {missing}" for missing in missing_tests(root, named))


def pages_without_a_place(root: Path) -> Iterator[str]:
    """Pages that no section of the site names; `make docs` refuses them, and takes a minute to say so."""
    sections = (root / NAVIGATION).read_text(encoding="utf-8")
    for page in sorted((root / "docs").glob("*.md")):
        name = page.relative_to(root).with_suffix("")
        if f'"{name}"' not in sections:
            yield f"{name}.md:1: NAVIGATION in {NAVIGATION} does not name this page"


def documents(root: Path) -> list[Path]:
    """The project's documents, relative to its root, in a stable order."""
    return sorted({path.relative_to(root) for pattern in PATTERNS for path in root.glob(pattern)})


def main(root: Path) -> int:
    """Print what was found; the exit status is 1 when something has to change."""
    found = [finding for document in documents(root) for finding in findings(root, document)]
    found += pages_without_a_place(root)
    for finding in found:
        print(finding)
    print(f"documents: {len(found)} to change")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent))

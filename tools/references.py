"""Checks that names in prose exist in the code: modules in documents, and names in docstrings and comments.

`make check` runs it. In the documents and in the prose of the sources, `room/module` in backquotes has to be a file or
directory of the package. In the prose of the sources, a dotted name (`module.function`, `Class.method`) or a name with
a leading underscore in backquotes has to consist of words that occur in the code. So a renamed class or function
is renamed in the prose as well. Accepted decisions (docs/adr) keep their names.

A class that prose names without backquotes, as `module.Class` or behind "See", has to be in that module, or anywhere.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from documents import DECISIONS, documents, inline_of

PACKAGE = Path("src/leveret")
BACKQUOTED = re.compile(r"(?<!`)`([^`\n]+)`")
MODULE = re.compile(r"(?P<room>\w+)/(?P<path>[\w/]*\w)/?(?:\.(?P<name>\w+))?")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|_[a-z]\w*")
CLASS = re.compile(r"(?<![\w./`])(?P<module>[a-z_]\w*(?:\.[a-z_]\w*)*)\.(?P<name>[A-Z]\w+)")
SEEN = re.compile(r"\b[Ss]ee (?P<name>[A-Z]\w+)")
WORDS = ("NAME", "STRING", "FSTRING_MIDDLE")
"""Tokens of code: names, and strings with their parts."""

FOREIGN_FILES = (".erl", ".h")
"""Endings of files of other projects."""


class Prose(NamedTuple):
    """A docstring or comment, with its first line."""

    path: Path
    line: int
    text: str


class Source(NamedTuple):
    """A Python file, divided; `classes` are those that it defines."""

    prose: list[Prose]
    words: set[str]
    classes: set[str]


def divided(path: Path) -> Source:
    """Divide a file into its prose and the words of its code."""
    text = path.read_text(encoding="utf-8")
    prose, words, docstrings, classes = [], set[str](), set[tuple[int, int]](), set[str]()
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.ClassDef):
            classes.add(node.name)
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.add((node.lineno, node.col_offset))
            prose.append(Prose(path, node.lineno, node.value.value))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            prose.append(Prose(path, token.start[0], token.string))
        elif tokenize.tok_name[token.type] in WORDS and token.start not in docstrings:
            words.update(re.findall(r"\w+", token.string))
    return Source(prose, words, classes)


def is_missing_module(root: Path, code: str) -> bool:
    """Whether a name has the form of a module of the package (`room/module`, `room/module.name`) and is none."""
    match = MODULE.fullmatch(code)
    if (
        not match
        or not (root / PACKAGE / match["room"]).is_dir()
        or match["path"].split("/")[-1].startswith("test_")
    ):
        return False
    place = root / PACKAGE / match["room"] / match["path"]
    module = place.with_name(f"{place.name}.py")
    if match["name"] in (None, "py"):
        return not (module.is_file() or (place.is_dir() and not match["name"]))
    return not module.is_file() or match["name"] not in divided(module).words


def missing_names(root: Path, prose: Iterable[Prose], words: set[str]) -> Iterator[str]:
    """Names in docstrings and comments that the code does not have."""
    for path, line, text in prose:
        for code in BACKQUOTED.findall(text):
            unknown = (
                DOTTED.fullmatch(code)
                and not code.endswith(FOREIGN_FILES)
                and not words.issuperset(re.findall(r"\w+", code))
            )
            if unknown or is_missing_module(root, code):
                yield f"{path.relative_to(root)}:{line}: `{code}` is no name of the code"


def missing_classes(root: Path, sources: Mapping[Path, Source], words: set[str]) -> Iterator[str]:
    """Classes in docstrings and comments, without backquotes, that are not where they are said to be."""
    classes = set(chain.from_iterable(source.classes for source in sources.values()))
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path, source in sources.items():
        parts = path.relative_to(root / PACKAGE).with_suffix("").parts
        for start in range(len(parts)):
            modules[".".join(parts[start:])] |= source.words
    for path, line, text in chain.from_iterable(source.prose for source in sources.values()):
        named = {
            match[0]: match["name"] in modules[module] if module in modules else match["name"] not in classes
            for match in CLASS.finditer(text)
            if (module := match["module"].removeprefix(f"{PACKAGE.name}.")).split(".")[0]
            not in sys.stdlib_module_names
        }
        named |= {match[0]: match["name"] in words for match in SEEN.finditer(text)}
        for code, is_there in named.items():
            if not is_there:
                yield f"{path.relative_to(root)}:{line}: {code} is no class of the code"


def missing_modules(root: Path) -> Iterator[str]:
    """Modules in documents that the package does not have."""
    for document in documents(root):
        if document.is_relative_to(DECISIONS):
            continue
        for line, token in inline_of(root / document):
            if token.type == "code_inline" and is_missing_module(root, token.content):
                yield f"{document}:{line}: `{token.content}` is no module of the package"


def main(root: Path) -> int:
    """Print what was found; the exit status is 1 when something has to change."""
    sources = {path: divided(path) for path in sorted((root / PACKAGE).rglob("*.py"))}
    words = set(chain.from_iterable(source.words for source in sources.values()))
    words.update(part for path in sources for part in path.relative_to(root).with_suffix("").parts)
    prose = chain.from_iterable(source.prose for source in sources.values())
    found = [
        *missing_names(root, prose, words),
        *missing_classes(root, sources, words),
        *missing_modules(root),
    ]
    for finding in found:
        print(finding)
    print(f"references: {len(found)} to change")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent))

"""Names what has strayed from the house style where no linter looks.

`make check` runs it. Sizes past the aim are reported; sizes past the limit, banned calls and
banned text fail. Everything here has a replacement, which the message names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_LINES_AIM, FILE_LINES_MAX = 500, 700
FUNCTION_LINES_AIM, FUNCTION_LINES_MAX = 60, 100

PACKAGE = Path("src/leveret")
PURE_ROOMS = ("model", "wire", "core", "session")
MAY_PRINT = ("cli", "testing")
# The listeners and the loops: one peer's or one request's bug must not end the node, and a command
# ends with one line whatever went wrong.
MAY_CATCH_ALL = ("runtime", "pipeline", "management", "cli")
# What serves clients: it goes through `core.broker.actor`, where each operation asks for its permissions.
CLIENT_ROOMS = ("session", "management")
BROKER_VERBS = (
    "declare_queue",
    "delete_queue",
    "declare_exchange",
    "delete_exchange",
    "bind",
    "unbind",
)
# The definition is always written `d.Queue`; both are what RabbitMQ calls a queue.
MAY_SHARE_A_NAME = ("Queue",)
NOT_READ = {".venv", "build", "dist", "requirements"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".sh", ".html", ".js", ".conf", ".json", ".txt", ""}

# Private words of earlier code, each with the term of the field (the glossary in ARCHITECTURE.md) that took its place.
BANNED_WORDS = {
    "aside": "quarantine",
    "asking": "leader client, request",
    "bury": "dead-letter",
    "carried": "checkpoint",
    "cede": "step down",
    "condemn": "declare dead",
    "door": "listener, server",
    "doors": "listeners",
    "grave": "dead letter",
    "homeless": "to be registered again",
    "hopes": "reconnect grace",
    "lacking": "catch-up plan, missing",
    "life": "incarnation",
    "lives": "incarnations",
    "news": "events, progress",
    "passing": "remote methods",
    "pen": "definitions lock",
    "reign": "leadership",
    "reigns": "leaderships",
    "relay": "forwarding",
    "relays": "forwarding",
    "relayed": "forwarded",
    "shadow": "remote channel",
    "shadows": "remote channels",
    "surroundings": "cluster view",
    "survivors": "unsettled messages",
    "told": "reported, notified",
    "tells": "reports, notifies",
    "unheard": "ignore",
}
# The option of `rejoin_as_downstream`, whose name is a promise to its users.
MAY_HAVE_BANNED_WORDS = ("set_all_aside",)

# Spelled in pieces, so that this file passes its own rules.
BANNED_TEXT = {
    re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b"): "write it down as an issue, or do it",
    re.compile(r"(?<![\w.])/(work|opt/wheels|opt/pypi|ro" r"ot)/"): "a path of one machine",
    re.compile(r"\b(files\.python" r"hosted|py" r"pi)\.org\b"): "pip's own configuration names the index",
    re.compile(r"\[tool\.uv\.index|--(extra-)?index" r"-url[ =]"): "pip's own configuration names the index",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at; `fatal` ones fail the check."""

    path: Path
    line: int
    text: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" + ("" if self.fatal else " (a hint)")


def room_of(path: Path) -> str:
    """The room a file of the package belongs to; empty for tests, tools and benchmarks."""
    return path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else ""


def findings_in(path: Path, text: str) -> Iterator[Finding]:
    """Everything wrong with one file, whose path is relative to the project's root."""
    for pattern, advice in BANNED_TEXT.items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(path, line, f"{match.group()!r}: {advice}")
    if path.suffix != ".py":
        return
    if path.name == "utils.py":
        yield Finding(path, 1, "name the file after the one idea it holds")
    yield from too_long(path, 1, "file", text.count("\n"), FILE_LINES_AIM, FILE_LINES_MAX)
    if room_of(path):
        yield from banned_words_in(path, path.stem, 1)
    for node in ast.walk(ast.parse(text, path)):
        yield from findings_in_node(path, node)


def findings_in_node(path: Path, node: ast.AST) -> Iterator[Finding]:
    """Long functions, banned words and calls, and handlers that swallow everything."""
    room = room_of(path)
    if room:
        for name in names_given_by(node):
            yield from banned_words_in(path, name, getattr(node, "lineno", 1))
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield from too_long(path, node.lineno, node.name, lines, FUNCTION_LINES_AIM, FUNCTION_LINES_MAX)
        case ast.Call(func=ast.Name(id="print")) if room and room not in MAY_PRINT:
            yield Finding(path, node.lineno, "print: log, or return the value to cli")
        case ast.Call(func=ast.Attribute(attr="when"), args=[]) if room:
            # uvloop makes a plain handle of a call that is due at once, which has no such method.
            yield Finding(path, node.lineno, "TimerHandle.when: keep the time beside the timer")
        case ast.Attribute(value=ast.Name(id="time"), attr="time") if room in PURE_ROOMS:
            yield Finding(path, node.lineno, "time.time: take `now_ms` as an argument")
        case ast.Call(func=ast.Attribute(value=value, attr=verb)) if verb in BROKER_VERBS and (
            room in CLIENT_ROOMS or path.name == "stream_server.py"
        ):
            if isinstance(value, ast.Attribute | ast.Name) and name_of(value).endswith("broker"):
                yield Finding(path, node.lineno, f"broker.{verb}: ask core.actor, which checks permissions")
        case ast.ExceptHandler(type=None | ast.Name(id="Exception" | "BaseException")):
            if room and room not in MAY_CATCH_ALL and not passes_on(node.body[-1]):
                yield Finding(path, node.lineno, "except of everything: name the errors that are expected")


def names_given_by(node: ast.AST) -> Iterator[str]:
    """The names that a node gives: of functions, classes, arguments, variables and attributes."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case (
            ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
        ):
            yield name
        case ast.alias(asname=str(name)):
            yield name


def banned_words_in(path: Path, name: str, line: int) -> Iterator[Finding]:
    """A finding for each private word in an identifier."""
    if name in MAY_HAVE_BANNED_WORDS:
        return
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
        if word.lower() in BANNED_WORDS:
            yield Finding(path, line, f"{name}: say {BANNED_WORDS[word.lower()]} instead of {word.lower()}")


def shared_names(classes: Iterable[tuple[Path, ast.ClassDef]]) -> Iterator[Finding]:
    """Public classes of the package whose name another one has: whoever reads it would have to ask which."""
    first: dict[str, Path] = {}
    for path, node in classes:
        if node.name.startswith("_") or node.name in MAY_SHARE_A_NAME or not room_of(path):
            continue
        if node.name in first:
            yield Finding(path, node.lineno, f"class {node.name}: {first[node.name]} has one of that name")
        first.setdefault(node.name, path)


def classes_in(root: Path, paths: Iterable[Path]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """The classes at the top of Python files."""
    for path in paths:
        if path.suffix == ".py":
            tree = ast.parse((root / path).read_text(encoding="utf-8"), path)
            yield from ((path, node) for node in tree.body if isinstance(node, ast.ClassDef))


def name_of(value: ast.Attribute | ast.Name) -> str:
    """The last word of `a.b.c`."""
    return value.id if isinstance(value, ast.Name) else value.attr


def passes_on(last: ast.stmt) -> bool:
    """Whether a handler that ends so has only tidied up and lets the error go on, or gives it to a future."""
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return isinstance(last.value.func, ast.Attribute) and last.value.func.attr == "set_exception"
    return isinstance(last, ast.Raise)


def too_long(path: Path, line: int, what: str, lines: int, aim: int, limit: int) -> Iterator[Finding]:
    """A hint past the aim, a failure past the limit."""
    if lines > aim:
        text = f"{what} is {lines} lines long: look for the second idea in it past {aim}, {limit} is the most"
        yield Finding(path, line, text, fatal=lines > limit)


def files_of(root: Path) -> Iterator[Path]:
    """The project's own text files, relative to the root, in a stable order."""
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        skipped = any(
            part in NOT_READ or part.endswith(".egg-info") or (part.startswith(".") and part != ".ci")
            for part in relative.parts
        )
        if path.is_file() and not skipped and path.suffix in TEXT_SUFFIXES:
            yield relative


def main(root: Path) -> int:
    """Print what was found; the exit status is 1 when something has to change."""
    found = [
        finding
        for path in files_of(root)
        for finding in findings_in(path, (root / path).read_text(encoding="utf-8", errors="replace"))
    ]
    found += shared_names(classes_in(root, files_of(root)))
    for finding in found:
        print(finding)
    fatal = sum(finding.fatal for finding in found)
    print(f"tidy: {fatal} to change, {len(found) - fatal} to think about")
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent.parent))

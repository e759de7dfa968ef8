"""A plugin of pytest that asks RabbitMQ only where its answer may have changed.

    pytest -p tests.conformance.answers                     leaves out what RabbitMQ has answered before
    pytest -p tests.conformance.answers --record-answers    asks all, and writes answers.txt

A line of answers.txt says that all tests of a module passed on RabbitMQ, with a digest of all that decides it: the
module, its helpers, the clients and RabbitMQ itself (`Answers.digest`). Comments, docstrings and the layout of sources
decide nothing. A module has no line, and is asked each time, if a room of the product takes part as RabbitMQ's client:
the answer changes with the product then. See docs/adr/0021-recorded-answers.md.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.servers import rabbitmq

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = "tests/conformance"
RECORD: Final = "answers.txt"
TOTAL: Final = "tests of this module for RabbitMQ"
CODECS: Final = ("model", "testing", "wire")
"""The rooms that talk to RabbitMQ for a test; every other one is the product that is tested."""
OF_OURS: Final = tuple(f"leveret.testing.servers.{name}" for name in ("broker", "warm_start"))
"""They start Leveret for its half of the tests: nothing that RabbitMQ answers follows from them."""
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Answers:
    """Of a tree of sources: which modules' answers are recorded, and still hold."""

    def __init__(self, root: Path, versions: str) -> None:
        """`versions` names RabbitMQ and all else that is not in the tree."""
        self._root = root
        self._folder = root / FOLDER
        self._versions = versions

    @cached_property
    def recorded(self) -> dict[str, str]:
        """Digest by the name of the module's file."""
        path = self._folder / RECORD
        lines = path.read_text().splitlines() if path.exists() else []
        return dict(line.split() for line in lines)

    def hold(self, module: str) -> bool:
        """Whether RabbitMQ would say today what it said when the answers of this file were recorded."""
        return module in self.recorded and self.recorded[module] == self.digest(module)

    def record(self, modules: set[str]) -> None:
        """Keep that all tests of these files passed; forget files that are gone, or may not be recorded."""
        digests = {name: self.digest(name) for name in {*self.recorded, *modules}}
        kept = {
            name: digest
            for name, digest in digests.items()
            if digest is not None and (name in modules or self.recorded[name] == digest)
        }
        lines = [f"{name} {digest}\n" for name, digest in sorted(kept.items())]
        (self._folder / RECORD).write_text("".join(lines))

    def digest(self, module: str) -> str | None:
        """Of all that a module's answers follow from; None if the module is gone or the product takes part."""
        path = self._folder / module
        sources = self._closure(path) | self._of_all if path.exists() else {None}
        if None in sources:
            return None
        files = {
            *(each for each in sources if each is not None),
            *(each for each in self._folder.glob("*.txt") if each.name != RECORD),
            self._root / "tests" / "conftest.py",
            self._root / "requirements" / "dev.txt",
        }
        total = hashlib.sha256(self._versions.encode())
        for file in sorted(files):
            total.update(f"{file.relative_to(self._root)} {_content(file)}\n".encode())
        return total.hexdigest()

    @cached_property
    def _of_all(self) -> set[Path | None]:
        return self._closure(self._folder / "conftest.py")

    def _closure(self, path: Path) -> set[Path | None]:
        """The file and all of ours that it imports, directly or not; with None if the product is among them."""
        found: set[Path | None] = set()
        ahead = [path]
        while ahead:
            file = ahead.pop()
            if file in found:
                continue
            found.add(file)
            for name in _imports(file):
                if name.startswith("leveret.") and not name.startswith(
                    tuple(f"leveret.{room}" for room in CODECS)
                ):
                    found.add(None)
                elif not name.startswith(OF_OURS) and (imported := _file(self._root, name)) is not None:
                    ahead.append(imported)
        return found


@cache
def _file(root: Path, name: str) -> Path | None:
    """Where a module of ours is; None for others', and for what a module defines. Asked thirty thousand times."""
    base = root / ("src" if name.startswith("leveret") else ".") / name.replace(".", "/")
    places = (base.with_suffix(".py"), base / "__init__.py")
    return next((each for each in places if each.exists()), None)


@cache
def _content(file: Path) -> str:
    """A digest of what a file does: of a source, its syntax tree without docstrings."""
    if file.suffix != ".py":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


@cache
def _imports(file: Path) -> frozenset[str]:
    """What a file imports anywhere in it; of `from a import b` both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{file}: relative imports are not followed"
            names.update([node.module, *(f"{node.module}.{each.name}" for each in node.names)])
    return frozenset(names)


def forget_sources() -> None:
    """Read all files anew, as somebody may have edited them."""
    _file.cache_clear()
    _imports.cache_clear()
    _content.cache_clear()


def versions() -> str:
    """RabbitMQ's, Erlang's and Python's: of what is compared, and of what it runs on."""
    erl = shutil.which("erl")
    release = Path(erl).resolve().parents[1] / "releases" / "start_erl.data" if erl else None
    erlang = release.read_text().strip() if release is not None and release.exists() else "unknown"
    return f"rabbitmq {rabbitmq.version()} erlang {erlang} python {sys.version_info[:2]}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-answers", action="store_true", help="ask RabbitMQ everything, and record where it agreed"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-answers"):
        config.pluginmanager.register(Recorder(config), "answers recorder")
    else:
        config.pluginmanager.register(Sieve(), "answers sieve")


def _module(nodeid: str) -> str | None:
    """The file of a conformance test; None for other tests."""
    path = nodeid.partition("::")[0]
    folder, _, name = path.rpartition("/")
    return name if folder == FOLDER else None


def _asked(items: list[pytest.Item]) -> Iterator[tuple[str, pytest.Item]]:
    for item in items:
        module = _module(item.nodeid)
        if module is not None and item.get_closest_marker("rabbitmq"):
            yield module, item


class Sieve:
    """Leaves out what RabbitMQ has answered, and tells of how many modules that could be recorded it is asked."""

    def __init__(self) -> None:
        self._changed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Others leave tests out, too."""
        self._changed &= {module for module, _ in _asked(session.items)}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._changed:
            terminalreporter.write_line(
                f"RabbitMQ was asked again in {len(self._changed)} modules, which takes minutes: "
                "run `make answers`, and commit answers.txt."
            )

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        answers = Answers(ROOT, versions())
        hold = {module: answers.hold(module) for module in {module for module, _ in _asked(items)}}
        self._changed = {name for name in hold if not hold[name] and answers.digest(name) is not None}
        answered = {id(item) for module, item in _asked(items) if hold[module]}
        if answered:
            config.hook.pytest_deselected(items=[item for item in items if id(item) in answered])
            items[:] = [item for item in items if id(item) not in answered]


class Recorder:
    """Records the modules of which every test passed on RabbitMQ."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_worker = hasattr(config, "workerinput")
        self._passed: Counter[str] = Counter()
        self._totals: dict[str, int] = {}
        self._bad: set[str] = set()
        self._before: dict[str, str | None] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tell with each report how many there are, before any are left out."""
        totals = Counter(module for module, _ in _asked(items))
        for module, item in _asked(items):
            item.user_properties.append((TOTAL, totals[module]))

    def pytest_sessionstart(self) -> None:
        if not self._is_worker:
            self._before = self._digests()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        total = dict(report.user_properties).get(TOTAL)
        module = _module(report.nodeid)
        if total is None or module is None:
            return
        self._totals[module] = int(str(total))
        if not report.passed:
            self._bad.add(module)
        elif report.when == "call":
            self._passed[module] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_worker or any("::" in each for each in session.config.args):
            return
        whole = {name for name, total in self._totals.items() if self._passed[name] == total} - self._bad
        after = self._digests()
        # A file that was edited meanwhile is not the one that was asked with.
        Answers(ROOT, versions()).record(
            {name for name in whole if self._before.get(name) == after.get(name)}
        )

    def _digests(self) -> dict[str, str | None]:
        forget_sources()
        answers = Answers(ROOT, versions())
        return {each.name: answers.digest(each.name) for each in (ROOT / FOLDER).glob("test_*.py")}

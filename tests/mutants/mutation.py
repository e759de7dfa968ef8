"""The list of mutations, in `mutations/*.toml`: one file for each room at the top of `src/leveret`.

A mutation is a fault that a developer could make and that would hurt a user. It replaces a line or two of one source
file, and names the tests that are expected to find it. A source file that changes takes its mutations with it:
`make check` names each one whose text is no longer in the tree, and each test that is no longer there.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MUTATIONS: Final = Path(__file__).parent / "mutations"
PACKAGE: Final = Path("src/leveret")
NOT_MUTATED: Final = "testing"


class MutationError(Exception):
    """A mutation does not fit the tree; the message names the mutation and the reason."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault.

    Attributes:
        fault: a sentence that says in a user's terms what goes wrong; no two mutations share it.
        file: the source file, relative to `src/leveret`.
        old: the text that is replaced; it occurs in the file exactly once.
        new: what replaces it.
        tests: node ids of pytest without parameters, relative to `tests`; those that are expected to find the fault.
        world: the simulated world that finds it, where that is expected to; see tests/simulation.
        seeds: how many seeds of that world are tried.
        often: a kind of fault that happens most of the time in these runs; empty for none.
        harmless: the reason why the fault does no harm any more; empty for a fault that is to be found.
    """

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    world: str = ""
    seeds: int = 0
    often: str = ""
    harmless: str = ""

    @property
    def room(self) -> str:
        """The directory of the file, relative to `src/leveret`."""
        return str(Path(self.file).parent)

    def applied(self, text: str) -> str:
        """Return the source text with the fault in it.

        Raises:
            MutationError: `old` does not occur exactly once, or the result is no Python.
        """
        count = text.count(self.old)
        if count != 1:
            raise MutationError(
                f"{self.fault!r}: its old text occurs {count} times in {PACKAGE / self.file}, not once: "
                f"the code has changed, so change the mutation with it"
            )
        mutated = text.replace(self.old, self.new)
        try:
            changed = ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise MutationError(
                f"{self.fault!r}: the mutated {PACKAGE / self.file} is no Python: {error}"
            ) from error
        if not changed:
            raise MutationError(f"{self.fault!r}: the mutated {PACKAGE / self.file} does the same as before")
        return mutated


def read_mutations(folder: Path = MUTATIONS) -> list[Mutation]:
    """Return all mutations, by file of the list and in its order.

    Raises:
        MutationError: an entry lacks a field or has an unknown one, or two have the same `fault`.
    """
    mutations: dict[str, Mutation] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutation"]:
            try:
                mutation = Mutation(**entry | {"tests": tuple(entry.get("tests", ()))})
            except (KeyError, TypeError) as error:
                raise MutationError(f"{path.name}: {entry.get('fault', entry)!r}: {error}") from error
            if mutation.fault in mutations:
                raise MutationError(f"{path.name}: {mutation.fault!r} is there twice")
            mutations[mutation.fault] = mutation
    return list(mutations.values())


def problems(mutations: Sequence[Mutation], root: Path = ROOT) -> Iterator[str]:
    """Name each mutation that cannot be put into the tree, and each test that it names and that is not there."""
    for mutation in mutations:
        try:
            mutation.applied((root / PACKAGE / mutation.file).read_text())
        except FileNotFoundError:
            yield f"{mutation.fault!r}: there is no {PACKAGE / mutation.file}"
        except MutationError as error:
            yield str(error)
        if not mutation.tests and not (mutation.world and mutation.seeds):
            yield f"{mutation.fault!r}: no test, and no simulated world, is expected to find it"
        for test in mutation.tests:
            path, _, name = test.partition("::")
            if name not in tests_in(root / "tests" / path):
                yield f"{mutation.fault!r}: there is no test {test}"


def rooms_without(mutations: Sequence[Mutation], root: Path = ROOT) -> list[str]:
    """Return the directories of the product that have source files and no mutation, sorted."""
    package = root / PACKAGE
    files = (path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py")
    rooms = {str(file.parent) for file in files if len(file.parts) > 1 and file.parts[0] != NOT_MUTATED}
    return sorted(rooms - {mutation.room for mutation in mutations})


@cache
def tests_in(path: Path) -> frozenset[str]:
    """Return the names of the tests of a file, those of a class as `Class::name`; none if there is no such file."""
    if not path.is_file():
        return frozenset()
    return frozenset(_tests(ast.parse(path.read_text())))


def _tests(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
            yield prefix + each.name
        elif isinstance(each, ast.ClassDef):
            yield from _tests(each, f"{prefix}{each.name}::")

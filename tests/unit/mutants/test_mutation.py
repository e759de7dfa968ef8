"""The list of mutations fits the tree, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import PACKAGE, Mutation, MutationError, problems, read_mutations, rooms_without

LEAST = 60
MUTATION = Mutation(
    "a sum is a difference", "core/sums.py", "a + b", "a - b", ("unit/test_sums.py::test_sum",)
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with one source file and one test."""
    source, test = tmp_path / PACKAGE / MUTATION.file, tmp_path / "tests/unit/test_sums.py"
    for path, text in ((source, "def add(a, b):\n    return a + b\n"), (test, "def test_sum():\n    pass\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


def test_the_list_has_a_mutation_in_each_room() -> None:
    mutations = read_mutations()
    assert len(mutations) >= LEAST
    assert rooms_without(mutations) == []


def test_a_room_without_a_mutation_is_named(tree: Path) -> None:
    assert rooms_without([MUTATION], tree) == []
    assert rooms_without([], tree) == ["core"]


def test_a_mutation_that_fits_is_applied(tree: Path) -> None:
    assert MUTATION.applied("a + b") == "a - b"
    assert list(problems([MUTATION], tree)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def add(one, other): ...", "occurs 0 times"),
        ("def add(a, b): return a + b or a + b", "occurs 2 times"),
        ("'a + b", "is no Python"),
        ("# a + b", "does the same as before"),
    ],
)
def test_a_mutation_that_the_code_has_left_behind_is_refused(text: str, why: str) -> None:
    with pytest.raises(MutationError, match=why):
        MUTATION.applied(text)


def test_a_mutation_of_a_file_that_is_gone_and_a_test_that_is_gone_are_named(tree: Path) -> None:
    (tree / PACKAGE / MUTATION.file).unlink()
    missing = Mutation(
        "a fault", MUTATION.file, "a", "b", ("unit/test_sums.py::test_product", "unit/test_gone.py::test")
    )
    found = " ".join(problems([missing], tree))
    assert "there is no src/leveret/core/sums.py" in found
    assert "there is no test unit/test_sums.py::test_product" in found
    assert "there is no test unit/test_gone.py::test" in found


def test_an_entry_without_a_field_and_a_fault_that_is_there_twice_are_refused(tmp_path: Path) -> None:
    entry = '[[mutation]]\nfault = "f"\nfile = "a.py"\nold = "a"\nnew = "b"\ntests = []\n'
    (tmp_path / "core.toml").write_text(entry * 2)
    with pytest.raises(MutationError, match="'f' is there twice"):
        read_mutations(tmp_path)
    (tmp_path / "core.toml").write_text(entry.replace('new = "b"\n', ""))
    with pytest.raises(MutationError, match=r"core.toml: 'f': .*new"):
        read_mutations(tmp_path)

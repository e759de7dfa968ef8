from __future__ import annotations

from pathlib import Path

import pytest
import references

CODE = '''
"""A queue, of `core/broker` and `core/queues/log.Log`."""


class Queue:
    """Messages; `Queue.purge` removes them, `{name}`."""

    def purge(self) -> None:  # Like `_purge_all`.
        self._purge_all()
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package of two rooms and a directory for documents."""
    for room in ("broker", "queues"):
        (tmp_path / "src/leveret/core" / room).mkdir(parents=True)
    (tmp_path / "src/leveret/core/queues/log.py").write_text("class Log: ...\n")
    (tmp_path / "docs").mkdir()
    return tmp_path


def found(project: Path, code: str = "Queue.purge", document: str = "") -> int:
    (project / "src/leveret/core/queues/queue.py").write_text(CODE.replace("{name}", code))
    (project / "docs/page.md").write_text(document)
    return references.main(project)


@pytest.mark.parametrize(
    "code",
    ["core.queues.log.Log", "core/queues/queue.Queue", "rabbit_password.erl", "writev", "a.b c", "core/*"],
)
def test_names_of_the_code_and_other_text_pass(project: Path, code: str) -> None:
    assert found(project, code) == 0


@pytest.mark.parametrize("code", ["Kept.purge", "Queue.is_full", "_settle_buried", "core/queues/kept"])
def test_a_name_in_prose_that_the_code_does_not_have_is_reported(
    project: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    assert found(project, code) == 1
    assert f"src/leveret/core/queues/queue.py:6: `{code}` is no name of the code" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["queues.log.Log", "See Log", "queue.Queue", "threading.Thread", "pyspark.RDD"]
)
def test_a_class_that_is_where_prose_says_passes(project: Path, text: str) -> None:
    (project / "src/leveret/core/queues/other.py").write_text(f"# {text}.\n")
    assert found(project) == 0


@pytest.mark.parametrize("text", ["queues.log.Queue", "See Logs", "queue_log.Log"])
def test_a_class_that_is_not_where_prose_says_is_reported(
    project: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (project / "src/leveret/core/queues/other.py").write_text(f"# {text}.\n")
    assert found(project) == 1
    assert f"src/leveret/core/queues/other.py:1: {text} is no class of the code" in capsys.readouterr().out


def test_a_name_that_occurs_only_in_prose_is_no_name_of_the_code(project: Path) -> None:
    (project / "src/leveret/core/queues/kept.py").write_text('"""Kept: `Kept.is_full`."""\n')
    assert found(project) == 1


@pytest.mark.parametrize(
    "code", ["core/queues/queue.py", "core/queues/log.Log", "core/broker/", "unit/core/test_log.py"]
)
def test_modules_in_documents_that_exist_pass(project: Path, code: str) -> None:
    assert found(project, document=f"See `{code}`.") == 0


@pytest.mark.parametrize(
    "code", ["core/queues/kept", "core/queues/kept.py", "core/queues/log.Kept", "core/kept/"]
)
def test_a_module_in_a_document_that_does_not_exist_is_reported(
    project: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    assert found(project, document=f"\nSee `{code}`.") == 1
    assert f"docs/page.md:2: `{code}` is no module of the package" in capsys.readouterr().out


def test_decisions_keep_the_names_of_their_time(project: Path) -> None:
    (project / "docs/adr").mkdir()
    (project / "docs/adr/0001-queues.md").write_text("`core/queues/kept`")
    assert found(project) == 0

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tidy

PURE = Path("src/leveret/core/queues/queue.py")
RUNTIME = Path("src/leveret/runtime/node/node.py")
CLI = Path("src/leveret/cli/ctl.py")
TEST = Path("tests/unit/core/queues/test_queue.py")
NOTE = "TO" + "DO"


def fatal(path: Path, text: str) -> list[str]:
    return [finding.text for finding in tidy.findings_in(path, text) if finding.fatal]


def function_of(lines: int) -> str:
    return "def long() -> None:\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (PURE, "print('ready')\n"),
        (PURE, "import time\nnow = time.time()\n"),
        (RUNTIME, "due_s = self._timer.when()\n"),
        (PURE, "try:\n    go()\nexcept Exception:\n    pass\n"),
        (PURE, "try:\n    go()\nexcept:\n    pass\n"),
        (Path("src/leveret/management/resources/queues.py"), "call.broker.declare_queue(wanted)\n"),
        (Path("src/leveret/runtime/clients/stream_server.py"), "self._broker.bind(binding)\n"),
        (TEST, f"# {NOTE}: more cases\n"),
        (Path("src/leveret/core/utils.py"), ""),
        (Path("README.md"), "see " + "/wor" + "k/main\n"),
        (Path("requirements/dev.txt"), "--index" + "-url https://example.org\n"),
        (PURE, "def told() -> None:\n    pass\n"),
        (PURE, "class QueueLife:\n    pass\n"),
        (PURE, "self._pen = lock\n"),
        (PURE, "def give(*, with_shadow: bool) -> None:\n    pass\n"),
        (Path("src/leveret/wire/relay.py"), ""),
        (PURE, "x = 1\n" * (tidy.FILE_LINES_MAX + 1)),
        (PURE, function_of(tidy.FUNCTION_LINES_MAX + 1)),
    ],
)
def test_what_is_banned_fails_the_check_with_one_finding(path: Path, text: str) -> None:
    assert len(fatal(path, text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (CLI, "print('ready')\n"),
        (CLI, "def rejoin(set_all_aside: bool) -> None:\n    pass\n"),
        (TEST, "told = []\n"),
        (PURE, "self.keep_alive = queue.lifetime\n"),
        (RUNTIME, "broker.delete_queue(queue)\n"),
        (PURE, "self._broker.declare_queue(wanted)\n"),
        (Path("src/leveret/session/amqp091/topology.py"), "actor.declare_queue(wanted)\n"),
        (TEST, "print('ready')\n"),
        (RUNTIME, "try:\n    go()\nexcept Exception:\n    pass\n"),
        (RUNTIME, "import time\nnow = time.time()\n"),
        (PURE, "try:\n    go()\nexcept ValueError:\n    pass\n"),
        (PURE, "try:\n    go()\nexcept BaseException:\n    undo()\n    raise\n"),
        (Path("README.md"), "GET /api/workers, then data at ./work/log\n"),
    ],
)
def test_what_another_room_may_do_passes_there(path: Path, text: str) -> None:
    assert fatal(path, text) == []


def test_a_size_past_the_aim_and_short_of_the_limit_is_a_hint() -> None:
    found = list(tidy.findings_in(PURE, function_of(tidy.FUNCTION_LINES_AIM + 1)))
    assert [(finding.line, finding.fatal) for finding in found] == [(1, False)]


def test_a_finding_names_the_file_and_the_line_of_the_thing() -> None:
    (finding,) = tidy.findings_in(PURE, "x = 1\n\nprint(x)\n")
    assert str(finding).startswith("src/leveret/core/queues/queue.py:3: print")


def test_the_check_fails_on_a_tree_with_a_banned_thing_and_passes_once_it_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guilty = tmp_path / "src/leveret/core/queues/queue.py"
    guilty.parent.mkdir(parents=True)
    guilty.write_text("print('ready')\n")
    assert tidy.main(tmp_path) == 1
    assert "src/leveret/core/queues/queue.py:1" in capsys.readouterr().out
    guilty.write_text("ready = True\n")
    assert tidy.main(tmp_path) == 0


def test_made_files_are_not_read(tmp_path: Path) -> None:
    for folder in (".venv", "build", "src/leveret.egg-info"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "note.txt").write_text(NOTE)
    assert tidy.main(tmp_path) == 0


def test_two_public_classes_of_one_name_fail_the_check() -> None:
    def defined(path: str, name: str) -> tuple[Path, ast.ClassDef]:
        (node,) = ast.parse(f"class {name}:\n    pass\n").body
        assert isinstance(node, ast.ClassDef)
        return Path(path), node

    classes = [
        defined("src/leveret/core/a.py", "Wanted"),
        defined("src/leveret/core/b.py", "_Wanted"),
        defined("src/leveret/core/c.py", "Queue"),
        defined("src/leveret/model/d.py", "Queue"),
        defined("tests/unit/e.py", "Wanted"),
    ]
    assert not list(tidy.shared_names(classes))
    (finding,) = tidy.shared_names([*classes, defined("src/leveret/wire/f.py", "Wanted")])
    assert finding.fatal
    assert finding.path == Path("src/leveret/wire/f.py")

"""When RabbitMQ has to be asked again, in trees of sources made up for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conformance import answers
from tests.conformance.answers import TOTAL, Answers, Recorder, Sieve

TREE = {
    "requirements/dev.txt": "pika==1.3.2",
    "tests/conftest.py": "",
    "tests/conformance/conftest.py": "from tests.conformance.brokers import running",
    "tests/conformance/brokers.py": (
        "from leveret.testing.servers.rabbitmq import RabbitNode\n"
        "from leveret.testing.servers.broker import LeveretProcess"
    ),
    "tests/conformance/rawclient.py": "import socket",
    "tests/conformance/metrics.txt": "rabbitmq_queues gauge",
    "tests/conformance/test_frames.py": "def test():\n    from tests.conformance import rawclient",
    "tests/conformance/test_target.py": "from leveret.pipeline.recovery import driver",
    "src/leveret/testing/servers/rabbitmq.py": "from leveret.wire import frames",
    "src/leveret/testing/servers/broker.py": "from leveret.testing.servers import warm_start",
    "src/leveret/testing/servers/warm_start.py": "",
    "src/leveret/wire/__init__.py": "",
    "src/leveret/wire/frames.py": "",
    "src/leveret/pipeline/recovery/driver.py": "",
    "tests/conformance/test_apart.py": "",
}
FRAMES = "test_frames.py"
WITHOUT_PART = ("pipeline", "target", "apart", "servers/broker", "warm_start")
DECIDES = sorted(each for each in TREE if not any(part in each for part in WITHOUT_PART))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def of(root: Path, versions: str = "rabbitmq 3.10.8") -> Answers:
    answers.forget_sources()
    return Answers(root, versions)


@pytest.mark.parametrize("changed", DECIDES)
def test_an_answer_holds_until_a_file_that_it_follows_from_changes(root: Path, changed: str) -> None:
    of(root).record({FRAMES})
    assert of(root).hold(FRAMES)
    with (root / changed).open("a") as file:
        file.write("\nchanged = 1\n")
    assert not of(root).hold(FRAMES)


def test_an_answer_outlives_comments_docstrings_and_layout(root: Path) -> None:
    module = root / "tests/conformance/rawclient.py"
    module.write_text('"""Before."""\nimport socket\n\ndef ask(a, b):\n    """Ask."""\n    return a + b\n')
    of(root).record({FRAMES})
    module.write_text(
        '"""Talks."""\n# As RabbitMQ does.\nimport socket\n\ndef ask(\n    a,\n    b,\n):\n    return a + b\n'
    )
    assert of(root).hold(FRAMES)
    module.write_text('"""Talks."""\nimport socket\n\ndef ask(a, b):\n    return a - b\n')
    assert not of(root).hold(FRAMES)


def test_an_answer_outlives_changes_to_what_has_no_part_in_it(root: Path) -> None:
    of(root).record({FRAMES})
    for name in {*TREE} - {*DECIDES}:
        (root / name).write_text("import os")
    assert of(root).hold(FRAMES)


def test_another_rabbitmq_is_asked(root: Path) -> None:
    of(root).record({FRAMES})
    assert not of(root, "rabbitmq 3.10.9").hold(FRAMES)


def test_a_module_in_which_the_product_asks_is_never_answered(root: Path) -> None:
    of(root).record({"test_target.py", FRAMES})
    assert list(of(root).recorded) == [FRAMES]
    assert not of(root).hold("test_target.py")


def test_answers_stay_that_hold_and_were_not_asked_for_again_and_others_go(root: Path) -> None:
    of(root).record({FRAMES, "test_apart.py", "test_gone.py"})
    (root / "tests/conformance/rawclient.py").write_text("import os")
    of(root).record(set())
    assert list(of(root).recorded) == ["test_apart.py"]


def test_what_is_answered_is_left_out_on_rabbitmq_and_on_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "ROOT", root)
    monkeypatch.setattr(answers, "versions", lambda: "rabbitmq 3.10.8")
    of(root).record({FRAMES})
    left_out: list[Any] = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)))
    items = [
        item(f"tests/conformance/{FRAMES}", rabbitmq=True),
        item(f"tests/conformance/{FRAMES}", rabbitmq=False),
        item("tests/conformance/test_apart.py", rabbitmq=True),
        item(f"tests/unit/{FRAMES}", rabbitmq=True),
    ]
    all_items = list(items)
    sieve, told = Sieve(), list[str]()
    sieve.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]  # a stand-in
    assert (left_out, items) == (all_items[:1], all_items[1:])
    for left in (items, items[:1]):
        sieve.pytest_collection_finish(SimpleNamespace(items=left))  # type: ignore[arg-type]
        sieve.pytest_terminal_summary(SimpleNamespace(write_line=told.append))  # type: ignore[arg-type]
    assert ["in 1 modules" in line for line in told] == [True]


@pytest.mark.parametrize(
    ("outcomes", "args", "edited", "recorded"),
    [
        (["passed", "passed"], [], False, [FRAMES]),
        (["passed"], [], False, []),
        (["passed", "failed"], [], False, []),
        (["passed", "skipped"], [], False, []),
        (["passed", "passed"], [f"tests/conformance/{FRAMES}::test"], False, []),
        (["passed", "passed"], [], True, []),
    ],
    ids=["all", "some", "one failed", "one was skipped", "some were named", "edited meanwhile"],
)
def test_a_module_is_recorded_once_all_of_it_passed(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: list[Any],
    args: list[str],
    edited: bool,
    recorded: list[str],
) -> None:
    monkeypatch.setattr(answers, "ROOT", root)
    monkeypatch.setattr(answers, "versions", lambda: "rabbitmq 3.10.8")
    answers.forget_sources()
    config: Any = SimpleNamespace(args=args)
    recorder = Recorder(config)
    items = [item(f"tests/conformance/{FRAMES}", rabbitmq=True) for _ in range(2)]
    recorder.pytest_sessionstart()
    recorder.pytest_collection_modifyitems(items)
    for each, outcome in zip(items, outcomes, strict=False):
        properties = each.user_properties
        assert properties == [(TOTAL, 2)]
        recorder.pytest_runtest_logreport(
            pytest.TestReport(each.nodeid, ("", 0, ""), {}, outcome, None, "call", user_properties=properties)
        )
    if edited:
        (root / "tests/conformance/rawclient.py").write_text("import os")
    recorder.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]  # a stand-in
    assert list(of(root).recorded) == recorded


def item(path: str, *, rabbitmq: bool) -> Any:
    return SimpleNamespace(
        nodeid=f"{path}::test", user_properties=[], get_closest_marker=lambda name: rabbitmq or None
    )

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.cli.api import Api
from leveret.cli.command import Session, command
from leveret.cli.output.values import MessageLine


class Context:
    """Typer's context, as far as a command needs it."""

    def __init__(self, **options: Any) -> None:
        self.opened = 0
        self.obj = Session(open=self.open, stack=ExitStack(), **options)

    @contextmanager
    def open(self) -> Iterator[Api]:
        self.opened += 1
        yield SimpleNamespace()  # type: ignore[misc]  # stands for an Api that is never called


@command('Tagging "{name}" in {vhost} with {tags} ...')
def tag(ctl: Session, name: str, tags: list[str] | None = None) -> MessageLine:
    """Tag something."""
    return MessageLine(f"{name} tagged", {"count": len(tags or [])})


def test_a_banner_comes_before_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    tag.as_callback()(context=Context(vhost="v"), name="{x}", tags=["a", "b"])
    assert capsys.readouterr().out == 'Tagging "{x}" in v with [a, b] ...\n{x} tagged\n'


def test_a_banner_waits_for_the_node_unless_the_command_needs_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Context().obj
    session.announce("Listing ...")
    assert not capsys.readouterr().out, "no node has answered: an error has no heading"
    _ = session.api
    assert capsys.readouterr().out == "Listing ...\n"
    session.announce("More ...")
    assert capsys.readouterr().out == "More ...\n"
    other = Context().obj
    other.announce("Waiting ...", needs_node=False)
    assert capsys.readouterr().out == "Waiting ...\n"


@pytest.mark.parametrize("options", [{"quiet": True}, {"formatter": "json"}, {"formatter": "csv"}])
def test_programs_and_quiet_people_get_no_banner(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tag.as_callback()(context=Context(**options), name="n", tags=None)
    assert "Tagging" not in capsys.readouterr().out


def test_a_command_is_named_and_explained_by_its_function() -> None:
    assert (tag.name, tag.help) == ("tag", "Tag something.")


def test_a_node_is_connected_to_once_and_only_when_it_is_asked() -> None:
    context = Context()
    tag.as_callback()(context=context, name="n", tags=None)
    assert context.opened == 0
    assert context.obj.api is context.obj.api
    assert context.opened == 1

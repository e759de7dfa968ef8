from __future__ import annotations

import io

import pytest

from leveret.cli.api import CtlError
from leveret.cli.secrets import password_of, text_of


@pytest.mark.parametrize("argument", [None, "-"])
def test_a_password_that_is_not_given_is_the_first_line_of_the_pipe(
    argument: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" s3cret \nmore\n"))
    assert password_of(argument) == " s3cret "


def test_a_password_that_is_given_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert password_of("p") == "p"


def test_no_password_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(CtlError) as caught:
        password_of(None)
    assert caught.value.status == 65


def test_a_document_may_come_from_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"a":\n1}'))
    assert text_of("-") == '{"a":\n1}'
    assert text_of("{}") == "{}"

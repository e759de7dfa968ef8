"""Kinds of values that are limits: taken, shown, and taken back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.config.kinds import Bytes, Duration, Limit, NodeName, OptionalBytes, OptionalRatio, OptionalText
from leveret.config.uris import ArchivePlace


@given(st.none() | st.integers(0, 10**17))
def test_a_limit_is_a_number_or_infinity(value: int | None) -> None:
    assert Limit().parse(Limit().show(value)) == value


@given(st.none() | st.decimals(0, 999_999, places=9).map(float))
def test_a_ratio_is_a_fraction_or_none(value: float | None) -> None:
    parsed = OptionalRatio().parse(OptionalRatio().show(value))
    assert parsed == (value if value is None else pytest.approx(value, abs=1e-9))


@given(st.none() | st.integers(5, 10**17))
def test_a_size_may_be_left_out(value: int | None) -> None:
    kind = OptionalBytes(Bytes(5))
    assert kind.parse(kind.show(value)) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Limit(1), "0"),
        (Limit(), "-1"),
        (Limit(), "none"),
        (Limit(), "1" * 19),
        (OptionalRatio(), "-0.1"),
        (OptionalRatio(), "0,4"),
        (OptionalRatio(), ".4"),
        (OptionalRatio(), "nan"),
        (OptionalBytes(Bytes(5)), "4"),
        (OptionalBytes(Bytes(5)), "infinity"),
        (NodeName(), ""),
        (NodeName(), "rabbit @a"),
        (NodeName(), "rabbit@a "),
        (NodeName(), "rabbit@\x7f"),
    ],
)
def test_anything_else_is_refused(kind: Limit | OptionalRatio | OptionalBytes | NodeName, text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        kind.parse(text)


@pytest.mark.parametrize("text", ["3651d", "3650d1ms", "315360001", "9" * 400])
def test_a_duration_is_ten_years_at_most(text: str) -> None:
    assert Duration(1).parse("3650d") == Duration(1).parse("315360000") == 315_360_000_000
    with pytest.raises(ValueError, match=r"^$"):
        Duration(1).parse(text)


def test_a_password_may_be_left_out_and_is_a_secret() -> None:
    assert OptionalText(secret=True).parse("none") is None
    assert OptionalText(secret=True).parse("x") == "x"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("none", None),
        ("/var/lib/standby", "/var/lib/standby"),
        ("file:///var/lib/stand%20by", "/var/lib/stand by"),
        ("s3a://bucket/eu/", "s3a://bucket/eu"),
        ("abfss://box@account.dfs.core.windows.net/eu", "abfss://box@account.dfs.core.windows.net/eu"),
    ],
)
def test_an_archive_is_at_a_path_or_in_a_store(text: str, value: str | None) -> None:
    kind = ArchivePlace()
    assert kind.parse(text) == value
    assert kind.parse(kind.show(value)) == value

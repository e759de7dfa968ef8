"""The schedule of a log file's rotation, in the syntax that RabbitMQ took from its logging library.

    $D0       each day at midnight
    $D23      each day at 23:00
    $H30      each hour, half past
    $W0D23    each Sunday at 23:00; the days of a week are 0 (Sunday) to 6
    $M1D0     the first of each month at midnight

Times are local.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from leveret.config.kinds import NONE

_FORM: Final = re.compile(
    r"\$(?:H(?P<minute>[0-5]?[0-9])|(?:W(?P<weekday>[0-6])|M(?P<day>[12]?[0-9]|3[01]))?D(?P<hour>[01]?[0-9]|2[0-3]))"
)
_A_YEAR_OF_HOURS: Final = 24 * 366


@dataclass(frozen=True, slots=True)
class Rotation:
    """A repeated moment. `weekday` is 0 for Sunday; a field of None matches any value."""

    text: str
    minute: int = 0
    hour: int | None = None
    weekday: int | None = None
    day: int | None = None

    def after(self, moment: datetime) -> datetime:
        """Return the first such moment after `moment`."""
        at = moment.replace(minute=self.minute, second=0, microsecond=0)
        for _ in range(_A_YEAR_OF_HOURS):
            if at > moment and self._fits(at):
                break
            at += timedelta(hours=1)
        return at

    def _fits(self, at: datetime) -> bool:
        return (
            self.hour in (None, at.hour)
            and self.weekday in (None, at.isoweekday() % 7)
            and self.day in (None, at.day)
        )


@dataclass(frozen=True, slots=True)
class OptionalRotation:
    """A repeated moment, or never."""

    allowed: str = (
        "$D0 (midnight), $D23, $H30 (each hour), $W0D23 (Sundays), $M1D0 (the first of a month), or none"
    )

    def parse(self, text: str) -> Rotation | None:
        """Return the moment; None for `none`."""
        if text in ("", NONE):
            return None
        match = _FORM.fullmatch(text)
        if match is None or match["day"] == "0":
            raise ValueError
        return Rotation(text, **{name: int(value) for name, value in match.groupdict().items() if value})

    def show(self, value: Rotation | None) -> str:
        """The moment, or `none`."""
        return NONE if value is None else value.text

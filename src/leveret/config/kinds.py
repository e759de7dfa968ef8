"""The kinds of values: each converts text of the file to a typed value and back.

A kind describes the `allowed` texts (for errors and the reference page), parses a text, and shows a value in a form
that parses to the same value. `parse` raises `ValueError`; its caller knows the key and the line.
"""

from __future__ import annotations

import ipaddress
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from leveret.model.addresses import bracketed
from leveret.model.durations import DURATION_MS_MAX
from leveret.model.patterns import PatternError, compiled

NONE: Final = "none"
INFINITY: Final = "infinity"

T = TypeVar("T")


class SettingKind(Protocol[T]):
    """The form of a setting's text."""

    @property
    def allowed(self) -> str:
        """Describe the accepted values, as the end of "expected ..."."""

    def parse(self, text: str) -> T:
        """Convert a text to its value.

        Raises:
            ValueError: the text is not one of `allowed`.
        """

    def show(self, value: T) -> str:
        """Return a text that `parse` converts back to the value."""


@dataclass(frozen=True, slots=True)
class TextKind:
    """Any text that is not empty. A secret is never shown."""

    secret: bool = False
    allowed: str = "some text"

    def parse(self, text: str) -> str:
        """The text itself."""
        if not text:
            raise ValueError
        return text

    def show(self, value: str) -> str:
        """The text itself."""
        return value


@dataclass(frozen=True, slots=True)
class HostText:
    """Text in which `$HOST` stands for this machine's short name."""

    allowed: str = "some text; $HOST in it stands for this machine's name"

    def parse(self, text: str) -> str:
        """Return the text with the name in place of `$HOST`."""
        if not text:
            raise ValueError
        return text.replace("$HOST", platform.node().partition(".")[0] or "localhost")

    def show(self, value: str) -> str:
        """The text."""
        return value


@dataclass(frozen=True, slots=True)
class NodeName(HostText):
    """The name of a node: commands, logs and files have it as one word."""

    allowed: str = "one word, such as rabbit@a; $HOST in it stands for this machine's name"

    def parse(self, text: str) -> str:
        """See HostText."""
        name = super(NodeName, self).parse(text)
        if not name.isprintable() or name.split() != [name]:
            raise ValueError
        return name


@dataclass(frozen=True, slots=True)
class OptionalText:
    """Optional text. A secret is never shown."""

    secret: bool = False
    allowed: str = "some text, or none"

    def parse(self, text: str) -> str | None:
        """Return the text; None for `none`."""
        return None if text in ("", NONE) else text

    def show(self, value: str | None) -> str:
        """The text, or `none`."""
        return NONE if value is None else value


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number between two bounds, both included."""

    least: int
    most: int

    @property
    def allowed(self) -> str:
        """The bounds."""
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, text: str) -> int:
        """The number."""
        if not re.fullmatch(r"[0-9]+", text) or not self.least <= int(text) <= self.most:
            raise ValueError
        return int(text)

    def show(self, value: int) -> str:
        """Return the digits."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit as a whole number, or no limit."""

    least: int = 0

    @property
    def allowed(self) -> str:
        """Describe the least value, and the word for no limit."""
        return f"a whole number of at least {self.least}, or {INFINITY}"

    def parse(self, text: str) -> int | None:
        """Return the number; None for no limit."""
        if text == INFINITY:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < self.least:
            raise ValueError
        return int(text)

    def show(self, value: int | None) -> str:
        """Return the digits, or the word."""
        return INFINITY if value is None else str(value)


@dataclass(frozen=True, slots=True)
class OptionalRatio:
    """A fraction as a decimal number, 0 or more."""

    allowed: str = "a fraction such as 0.4, or none"

    def parse(self, text: str) -> float | None:
        """The fraction; None for `none`."""
        if text == NONE:
            return None
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
            raise ValueError
        return float(text)

    def show(self, value: float | None) -> str:
        """The fraction, or `none`."""
        return NONE if value is None else f"{value:.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """The words."""
        return "one of " + ", ".join(self.words)

    def parse(self, text: str) -> str:
        """The word."""
        if text not in self.words:
            raise ValueError
        return text

    def show(self, value: str) -> str:
        """The word."""
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    allowed: str = "true or false"

    def parse(self, text: str) -> bool:
        """Return the truth value."""
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"

    def show(self, value: bool) -> str:
        """The word."""
        return "true" if value else "false"


_BYTES_PER: Final = {
    "": 1,
    "k": 2**10,
    "kib": 2**10,
    "kb": 10**3,
    "m": 2**20,
    "mib": 2**20,
    "mb": 10**6,
    "g": 2**30,
    "gib": 2**30,
    "gb": 10**9,
    "t": 2**40,
    "tib": 2**40,
    "tb": 10**12,
}


@dataclass(frozen=True, slots=True)
class Bytes:
    """A size in bytes, with RabbitMQ's units: `KB` is 1000, `K` and `KiB` are 1024."""

    least: int
    most: int = 2**63 - 1

    @property
    def allowed(self) -> str:
        """The units and bounds."""
        most = "" if self.most == 2**63 - 1 else f", at most {self.most}"
        return f"a size of at least {self.least} bytes{most}, such as 64MiB, 5GB or 5000000000"

    def parse(self, text: str) -> int:
        """The number of bytes."""
        match = re.fullmatch(r"([0-9]+) ?([a-zA-Z]*)", text)
        if match is None or match[2].lower() not in _BYTES_PER:
            raise ValueError
        size = int(match[1]) * _BYTES_PER[match[2].lower()]
        if not self.least <= size <= self.most:
            raise ValueError
        return size

    def show(self, value: int) -> str:
        """The number of bytes."""
        return str(value)


@dataclass(frozen=True, slots=True)
class OptionalBytes:
    """An optional size in bytes."""

    size: Bytes

    @property
    def allowed(self) -> str:
        """As of the size."""
        return f"{self.size.allowed}, or {NONE}"

    def parse(self, text: str) -> int | None:
        """The number of bytes; None for `none`."""
        return None if text == NONE else self.size.parse(text)

    def show(self, value: int | None) -> str:
        """The size, or `none`."""
        return NONE if value is None else self.size.show(value)


_MS_PER: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in milliseconds, written as `12h`, `1h30m` or plain seconds, of at most ten years."""

    least_ms: int

    @property
    def allowed(self) -> str:
        """The units and the bounds."""
        return f"a duration of {self.least_ms} ms to ten years, such as 30 (seconds), 30s, 12h or 7d"

    def parse(self, text: str) -> int:
        """The milliseconds."""
        if re.fullmatch(r"[0-9]+", text):
            text += "s"
        parts = _DURATION_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError
        duration_ms = sum(int(number) * _MS_PER[unit] for number, unit in parts)
        if not self.least_ms <= duration_ms <= DURATION_MS_MAX:
            raise ValueError
        return duration_ms

    def show(self, value: int) -> str:
        """Return the text in the largest unit that divides the value."""
        if not value:
            return "0s"
        unit = max((unit for unit in _MS_PER if value % _MS_PER[unit] == 0), key=lambda unit: _MS_PER[unit])
        return f"{value // _MS_PER[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class OptionalDuration:
    """An optional duration in milliseconds."""

    duration: Duration

    @property
    def allowed(self) -> str:
        """As of the duration."""
        return f"{self.duration.allowed}, or {NONE}"

    def parse(self, text: str) -> int | None:
        """The milliseconds; None for `none`."""
        return None if text == NONE else self.duration.parse(text)

    def show(self, value: int | None) -> str:
        """The duration, or `none`."""
        return NONE if value is None else self.duration.show(value)


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression, stored as its text."""

    allowed: str = "a regular expression"

    def parse(self, text: str) -> str:
        """Return the expression if it compiles."""
        try:
            compiled(text)
        except PatternError as error:
            raise ValueError from error
        return text

    def show(self, value: str) -> str:
        """Return its text."""
        return value


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A file or directory on this machine; `none` leaves it out, or leaves the choice to the node."""

    allowed: str = "an absolute path, or none"

    def parse(self, text: str) -> Path | None:
        """The path; None for `none`."""
        if text == NONE:
            return None
        path = Path(text)
        if not path.is_absolute():
            raise ValueError
        return path

    def show(self, value: Path | None) -> str:
        """The path, or `none`."""
        return NONE if value is None else str(value)


@dataclass(frozen=True, slots=True)
class FileName:
    """A file's name or path. A name without a directory leaves the choice of the directory to the node."""

    allowed: str = "a file's name, its absolute path, or false"

    def parse(self, text: str) -> Path | None:
        """The path; None for `false`."""
        if text == "false":
            return None
        path = Path(text)
        if text in ("", "true", NONE) or (not path.is_absolute() and path.name != text):
            raise ValueError
        return path

    def show(self, value: Path | None) -> str:
        """The path, or `false`."""
        return "false" if value is None else str(value)


class Address(NamedTuple):
    """The address of a listener: an IP address and a TCP port (0 lets the system choose)."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.ip)}:{self.port}"


LOOPBACK: Final = "127.0.0.1"
_PORT: Final = Integer(0, 65535)


@dataclass(frozen=True, slots=True)
class OptionalPort:
    """An optional TCP port."""

    allowed: str = f"{_PORT.allowed}, or {NONE}"

    def parse(self, text: str) -> int | None:
        """The port; None for `none`."""
        return None if text == NONE else _PORT.parse(text)

    def show(self, value: int | None) -> str:
        """The port, or `none`."""
        return NONE if value is None else str(value)


@dataclass(frozen=True, slots=True)
class UrlPath:
    """The path of a URL."""

    allowed: str = "a path such as /metrics"

    def parse(self, text: str) -> str:
        """Return the path without a final slash."""
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?", text):
            raise ValueError
        return text.rstrip("/")

    def show(self, value: str) -> str:
        """The path."""
        return value


@dataclass(frozen=True, slots=True)
class OptionalUrlPath:
    """An optional path of a URL."""

    allowed: str = f"{UrlPath().allowed}, or {NONE}"

    def parse(self, text: str) -> str:
        """Return the path without a final slash; empty for `none`."""
        return "" if text == NONE else UrlPath().parse(text)

    def show(self, value: str) -> str:
        """The path, or `none`."""
        return value or NONE


@dataclass(frozen=True, slots=True)
class Ip:
    """An IP address of a listener."""

    allowed: str = "an IP address such as 127.0.0.1, 0.0.0.0 or ::1"

    def parse(self, text: str) -> str:
        """The address."""
        return str(ipaddress.ip_address(text))

    def show(self, value: str) -> str:
        """The address."""
        return value


@dataclass(frozen=True, slots=True)
class OptionalIp:
    """An optional IP address of a listener."""

    allowed: str = f"{Ip().allowed}, or {NONE}"

    def parse(self, text: str) -> str | None:
        """The address; None for `none`."""
        return None if text == NONE else Ip().parse(text)

    def show(self, value: str | None) -> str:
        """The address, or `none`."""
        return NONE if value is None else value


@dataclass(frozen=True, slots=True)
class Listener:
    """An address and a port. A port alone is on loopback."""

    allowed: str = f"ADDRESS:PORT such as 127.0.0.1:5672, 0.0.0.0:5672 or [::1]:5672, or a port of {LOOPBACK}"

    def parse(self, text: str) -> Address:
        """Return the address of the listener."""
        ip, _, port = text.rpartition(":")
        if not ip:
            return Address(LOOPBACK, _PORT.parse(port))
        return Address(Ip().parse(ip.removeprefix("[").removesuffix("]")), _PORT.parse(port))

    def show(self, value: Address) -> str:
        """Address and port."""
        return str(value)

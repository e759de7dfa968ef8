"""How one setting is declared: key, kind, default and help stand at its place in the tree, once.

From these declarations come parsing, errors, `--print-config` and the reference page. A key that
ends in `.$name` is a family: any number of lines whose last word is free, such as `listeners.tcp.1`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from leveret.config.foreign import foreign_advice, is_foreign_key
from leveret.config.kinds import NONE, OptionalText, SettingKind, TextKind
from leveret.config.syntax import Given
from leveret.config.uris import ArchivePlace, Endpoints
from leveret.model.errors import ConfigError

_METADATA: Final = "leveret.setting"
_PREFIX: Final = "leveret.prefix"
_FREE: Final = ".$name"
_SIMILAR: Final = 0.6
_ALIKE: Final = 0.88
"""How near a known key must be to be what was meant, where RabbitMQ has settings of that family."""

T = TypeVar("T")
V = TypeVar("V")
Tree = TypeVar("Tree")


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting, or one family of them.

    Attributes:
        names: of a family, the last words that are allowed; empty for any.
        defaults: of a family, what holds when no line of it is given, by last word.
        collect: of a family, makes the field's value of the values by last word.
    """

    key: str
    kind: SettingKind[Any]
    default: str
    help: str
    names: tuple[str, ...] = ()
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    collect: Callable[[dict[str, Any]], Any] = dict

    @property
    def is_family(self) -> bool:
        """Whether the key's last word is free."""
        return self.key.endswith(_FREE)

    @property
    def prefix(self) -> str:
        """A family's key without its free word."""
        return self.key.removesuffix(_FREE)

    @property
    def is_secret(self) -> bool:
        """Whether the value is never shown."""
        return isinstance(self.kind, TextKind | OptionalText) and self.kind.secret

    def hides(self, text: str) -> bool:
        """Whether this text is not shown: of a secret any, of URLs those with a password in them."""
        return self.is_secret or (isinstance(self.kind, Endpoints | ArchivePlace) and self.kind.hides(text))

    @property
    def allowed(self) -> str:
        """The values it takes, as the end of "expected ..."."""
        return self.kind.allowed

    def name_in(self, key: str) -> str | None:
        """The free word of a family's key; empty for the family itself, None if `key` is not of it."""
        if not self.is_family:
            return None
        if key == self.prefix:
            return ""
        name = key.removeprefix(self.prefix + ".")
        return name if name != key and (not self.names or name in self.names) else None

    def takes(self, key: str) -> bool:
        """Whether a line with this key is for this setting."""
        return key == self.key or self.name_in(key) is not None

    def read(self, given: Mapping[str, Given]) -> object:
        """The value from all that was given.

        Raises:
            ConfigError: a text is not allowed; names key, place and what is.
        """
        if not self.is_family:
            text = given.get(self.key)
            return self.kind.parse(self.default) if text is None else self._parse(self.key, text)
        own = {key: text for key, text in given.items() if self.takes(key)}
        if not own:
            return self.standard()
        return self.collect(self._members(own))

    def _members(self, own: Mapping[str, Given]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, text in own.items():
            if key != self.prefix:
                members[str(self.name_in(key))] = self._parse(key, text)
            elif text.text != NONE:
                raise _malformed(
                    key, text, f"none, or lines {self.key} = VALUE", is_hidden=self.hides(text.text)
                )
            else:
                members.clear()
        return members

    def standard(self) -> object:
        """The value when nothing is given."""
        if self.is_family:
            return self.collect({name: self.kind.parse(text) for name, text in self.defaults.items()})
        return self.kind.parse(self.default)

    def _parse(self, key: str, given: Given) -> object:
        try:
            return cast(object, self.kind.parse(given.text))
        except ValueError:
            raise _malformed(key, given, self.allowed, is_hidden=self.hides(given.text)) from None


def _malformed(key: str, given: Given, allowed: str, *, is_hidden: bool) -> ConfigError:
    value = "(secret)" if is_hidden else repr(given.text)
    return ConfigError(f"{given.origin}: {key} = {value} is not valid: expected {allowed}")


def setting(key: str, kind: SettingKind[T], default: str, help: str) -> T:
    """Declare a setting as a field of a dataclass of the tree."""
    return cast(T, _field(Setting(key, kind, default, help)))


def family(
    prefix: str,
    kind: SettingKind[T],
    defaults: Mapping[str, str],
    help: str,
    *,
    collect: Callable[[dict[str, T]], V],
    names: tuple[str, ...] = (),
) -> V:
    """Declare a family of settings as one field of a dataclass of the tree."""
    return cast(V, _field(Setting(prefix + _FREE, kind, "", help, names, defaults, collect)))


def _field(declared: Setting) -> object:
    return dataclasses.field(
        default_factory=declared.standard, metadata={_METADATA: declared}, repr=not declared.is_secret
    )


def branch(tree: type[Tree], prefix: str) -> Tree:
    """Declare a tree that several listeners have, each with keys of its own: `prefix`, a dot, the tree's key."""
    return dataclasses.field(default_factory=tree, metadata={_PREFIX: prefix + "."})


def settings_of(tree: type[Any], prefix: str = "") -> Iterator[Setting]:
    """All settings declared in a tree of dataclasses, in order."""
    for field in _declaring(tree):
        declared = _declared(field, prefix)
        if declared is not None:
            yield declared
        else:
            yield from settings_of(_branch(field), prefix + field.metadata.get(_PREFIX, ""))


def declared_values(tree: Any, prefix: str = "") -> Iterator[tuple[Setting, Any]]:
    """All settings declared in a tree that was read, each with its value there, in order."""
    for field in _declaring(tree):
        value, declared = getattr(tree, field.name), _declared(field, prefix)
        if declared is not None:
            yield declared, value
        else:
            yield from declared_values(value, prefix + field.metadata.get(_PREFIX, ""))


def _declared(field: dataclasses.Field[Any], prefix: str) -> Setting | None:
    """What a field declares, under its whole key; None for a tree of settings."""
    declared: Setting | None = field.metadata.get(_METADATA)
    return dataclasses.replace(declared, key=prefix + declared.key) if declared and prefix else declared


def read_tree(tree: type[Tree], given: Mapping[str, Given], prefix: str = "") -> Tree:
    """Build the tree from what was given; see `Setting.read`."""
    values: dict[str, object] = {}
    for field in _declaring(tree):
        declared = _declared(field, prefix)
        if declared is None:
            below = prefix + field.metadata.get(_PREFIX, "")
            values[field.name] = read_tree(_branch(field), given, below)
        else:
            values[field.name] = declared.read(given)
    return tree(**values)


def _declaring(tree: Any) -> list[dataclasses.Field[Any]]:
    """The fields that are a setting or a tree of them; what else a tree tells has a plain default."""
    return [field for field in dataclasses.fields(tree) if field.default is dataclasses.MISSING]


def _branch(field: dataclasses.Field[Any]) -> type[Any]:
    """The class of a field that is no setting but a tree of them."""
    return cast(type[Any], field.default_factory)


def check_known(given: Mapping[str, Given], known: list[Setting]) -> None:
    """Refuse a key that nothing declares.

    Raises:
        ConfigError: names the key, its place and the nearest known key.
    """
    for key, text in given.items():
        if not any(declared.takes(key) for declared in known):
            raise ConfigError(f"{text.origin}: unknown setting '{key}'{_advice(key, known)}")


def _advice(key: str, known: list[Setting]) -> str:
    for declared in known:
        if declared.names and key.startswith(declared.prefix + "."):
            return f"; after {declared.prefix}. comes one of {', '.join(declared.names)}"
    foreign = foreign_advice(key)
    near = _nearest(key, known, _ALIKE if foreign else _SIMILAR)
    if near is not None and not is_foreign_key(key):
        return f"; did you mean '{near}'?"
    return f"; {foreign or '`leveret serve --print-config` prints all settings'}"


def contradiction(given: Mapping[str, Given], key: str, what: str) -> ConfigError:
    """What is allowed line by line and not together; the value is left out, for it may be a secret."""
    origin = given[key].origin if key in given else "default"
    return ConfigError(f"{origin}: {key} {what}")


def _nearest(key: str, known: list[Setting], cutoff: float) -> str | None:
    candidates: dict[str, str] = {}
    for declared in known:
        last = key.rpartition(".")[2]
        written = f"{declared.prefix}.{last}" if declared.is_family else declared.key
        candidates[written] = declared.key
    near = difflib.get_close_matches(key, candidates, n=1, cutoff=cutoff)
    return candidates[near[0]] if near else None

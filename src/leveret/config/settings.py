"""The declaration of one setting: key, kind, default and help stand at its place in the tree, once.

Parsing, errors, `--print-config` and the reference page are made from the declarations. A key that ends in `.$name` is
a family: any number of lines whose last word is free, such as `listeners.tcp.1`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast

from leveret.config.kinds import NONE, OptionalText, SettingKind, TextKind
from leveret.config.syntax import SettingText
from leveret.config.unsupported_keys import is_unsupported_key, unsupported_key_advice
from leveret.config.uris import ArchivePlace, Endpoints
from leveret.model.errors import ConfigError
from leveret.model.secrets import names_secret

_METADATA: Final = "leveret.setting"
_PREFIX: Final = "leveret.prefix"
_FREE: Final = ".$name"
_SIMILAR: Final = 0.6
_ALIKE: Final = 0.88
"""The least similarity of a known key to be suggested, for keys in RabbitMQ's families."""

T = TypeVar("T")
V = TypeVar("V")
Tree = TypeVar("Tree")


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting, or one family of settings.

    Attributes:
        names: for a family, the allowed last words; empty for any.
        defaults: for a family, the values by last word if no line of it is given.
        collect: for a family, converts the values by last word to the field's value.
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
        """Return whether the last word of the key is free."""
        return self.key.endswith(_FREE)

    @property
    def prefix(self) -> str:
        """Return a family's key without its free word."""
        return self.key.removesuffix(_FREE)

    @property
    def is_secret(self) -> bool:
        """Return whether the value is never shown."""
        return isinstance(self.kind, TextKind | OptionalText) and self.kind.secret

    def hides(self, key: str, text: str) -> bool:
        """Return whether the text of this key is hidden.

        Hidden are every text of a secret, URLs with a password, and texts of a family whose free words name a secret,
        such as those of Spark's own settings.
        """
        if isinstance(self.kind, Endpoints | ArchivePlace):
            return self.kind.hides(text)
        return self.is_secret or (isinstance(self.kind, TextKind) and names_secret(self.name_in(key) or ""))

    @property
    def allowed(self) -> str:
        """Describe the accepted values, as the end of "expected ..."."""
        return self.kind.allowed

    def name_in(self, key: str) -> str | None:
        """Return the free word of a family's key; empty for the family itself, None if `key` is no such key."""
        if not self.is_family:
            return None
        if key == self.prefix:
            return ""
        name = key.removeprefix(self.prefix + ".")
        return name if name != key and (not self.names or name in self.names) else None

    def takes(self, key: str) -> bool:
        """Return whether a line with this key belongs to this setting."""
        return key == self.key or self.name_in(key) is not None

    def read(self, given: Mapping[str, SettingText]) -> object:
        """Return the value from all given texts.

        Raises:
            ConfigError: a text is not allowed; names the key, its place and the allowed values.
        """
        if not self.is_family:
            text = given.get(self.key)
            return self.kind.parse(self.default) if text is None else self._parse(self.key, text)
        own = {key: text for key, text in given.items() if self.takes(key)}
        if not own:
            return self.standard()
        return self.collect(self._members(own))

    def _members(self, own: Mapping[str, SettingText]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, text in own.items():
            if key != self.prefix:
                members[str(self.name_in(key))] = self._parse(key, text)
            elif text.text != NONE:
                raise _malformed(
                    key, text, f"none, or lines {self.key} = VALUE", is_hidden=self.hides(key, text.text)
                )
            else:
                members.clear()
        return members

    def standard(self) -> object:
        """Return the value if no text is given."""
        if self.is_family:
            return self.collect({name: self.kind.parse(text) for name, text in self.defaults.items()})
        return self.kind.parse(self.default)

    def _parse(self, key: str, given: SettingText) -> object:
        try:
            return cast(object, self.kind.parse(given.text))
        except ValueError:
            raise _malformed(key, given, self.allowed, is_hidden=self.hides(key, given.text)) from None


def _malformed(key: str, given: SettingText, allowed: str, *, is_hidden: bool) -> ConfigError:
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
    """Declare a tree of settings that several listeners have, each under its own `prefix`."""
    return dataclasses.field(default_factory=tree, metadata={_PREFIX: prefix + "."})


def settings_of(tree: type[Any], prefix: str = "") -> Iterator[Setting]:
    """Return all settings declared in a tree of dataclasses, in order."""
    for _, declared, below in _declarations(cast(Any, tree), prefix):
        if isinstance(declared, Setting):
            yield declared
        else:
            yield from settings_of(declared, below)


def declared_values(tree: Any, prefix: str = "") -> Iterator[tuple[Setting, Any]]:
    """Return all settings of a tree with their values, in order."""
    for field in _declaring(tree):
        value, declared = getattr(tree, field.name), _declared(field, prefix)
        if declared is not None:
            yield declared, value
        else:
            yield from declared_values(value, prefix + field.metadata.get(_PREFIX, ""))


def _declared(field: dataclasses.Field[Any], prefix: str) -> Setting | None:
    """Return the setting that a field declares, under its whole key; None for a tree of settings."""
    declared: Setting | None = field.metadata.get(_METADATA)
    return dataclasses.replace(declared, key=prefix + declared.key) if declared and prefix else declared


def read_tree(tree: type[Tree], given: Mapping[str, SettingText], prefix: str = "") -> Tree:
    """Build the tree from the given texts; see `Setting.read`."""
    return tree(
        **{
            name: declared.read(given) if isinstance(declared, Setting) else read_tree(declared, given, below)
            for name, declared, below in _declarations(cast(Any, tree), prefix)
        }
    )


@cache
def _declarations(tree: Any, prefix: str) -> list[tuple[str, Setting | type[Any], str]]:
    """Return the name of each field with its setting, or with its tree of settings and the prefix of their keys."""
    found: list[tuple[str, Setting | type[Any], str]] = []
    for field in _declaring(tree):
        below = prefix + field.metadata.get(_PREFIX, "")
        found.append((field.name, _declared(field, prefix) or _branch(field), below))
    return found


def _declaring(tree: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields with a setting or a tree of settings; other fields have a plain default."""
    return [field for field in dataclasses.fields(tree) if field.default is dataclasses.MISSING]


def _branch(field: dataclasses.Field[Any]) -> type[Any]:
    """Return the class of a field that is a tree of settings."""
    return cast(type[Any], field.default_factory)


def check_known(given: Mapping[str, SettingText], known: list[Setting]) -> None:
    """Refuse an undeclared key.

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
    foreign = unsupported_key_advice(key)
    near = _nearest(key, known, _ALIKE if foreign else _SIMILAR)
    if near is not None and not is_unsupported_key(key):
        return f"; did you mean '{near}'?"
    return f"; {foreign or '`leveret serve --print-config` prints all settings'}"


def contradiction(given: Mapping[str, SettingText], key: str, what: str) -> ConfigError:
    """Return the error of settings that contradict each other, without their values, which may be secret."""
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

"""The import of definitions files at the start of a node, before any client is served.

The import is all or nothing: entities that cannot be put stop the start. The error names all of them, and the logs get
nothing of the import.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from leveret.config.sections.definitions import DefinitionsSettings as Settings
from leveret.core.broker.broker import Broker
from leveret.model.definitions import AnyEntity, Put
from leveret.model.errors import ConfigError, Refusal
from leveret.runtime.definitions.importing import (
    document_of,
    entities_of,
    is_passed_over,
    is_same,
    place_of,
    without_loose_bindings,
)
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

_HASH: Final = "sha256"


class Document(NamedTuple):
    """One definitions file."""

    file: Path
    octets: bytes

    def entities(self, default_queue_type: str) -> list[AnyEntity]:
        """Return the entities in the order in which they can be put; see definitions_import.

        Raises:
            ConfigError: the file is no definitions document; the text names the file, the section and the entry.
        """
        try:
            content = document_of(self.octets)
            return entities_of(content, None, default_queue_type=default_queue_type)
        except (msgspec.DecodeError, Refusal) as error:
            raise ConfigError(f"{self.file}: {error}") from None


class BootDefinitions:
    """The import of one start. Call `into` with a broker, then `remember` once the changes are durable."""

    def __init__(self, settings: Settings, state: StateFile) -> None:
        """`state` keeps the digest of the last import."""
        self._state = state
        self._skip_if_unchanged = settings.skip_if_unchanged
        self._paths = [path for path in (settings.load, _local_path(settings)) if path is not None]
        self._digest = ""

    @property
    def is_configured(self) -> bool:
        """Return whether there are files to import. Then, as in RabbitMQ, no default user and vhost are created."""
        return bool(self._paths)

    def into(self, broker: Broker) -> None:
        """Put all entities on top of the existing ones.

        Raises:
            ConfigError: a file cannot be read, or an entity cannot be put; the text names both.
        """
        documents = [document for path in self._paths for document in _documents_at(path)]
        digest = hashlib.sha256()
        for document in documents:
            digest.update(hashlib.sha256(document.octets).digest())
        if self._skip_if_unchanged and self._state.load().get(_HASH) == digest.hexdigest():
            logger.info("definitions_unchanged files=%d action=skipped", len(documents))
            return
        try:
            for document in documents:
                _put_all(document, broker)
        except ConfigError:
            broker.changes.clear()
            raise
        self._digest = digest.hexdigest()

    def remember(self) -> None:
        """Store that the import is durable: the same files are not imported again.

        Raises:
            StorageError: the digest cannot be written.
        """
        if self._digest:
            self._state.save({_HASH: self._digest})


def _local_path(settings: Settings) -> Path | None:
    if settings.backend == "none" and settings.path is not None:
        raise ConfigError("definitions.local.path needs definitions.import_backend = local_filesystem")
    if settings.backend != "none" and settings.path is None:
        raise ConfigError(f"definitions.import_backend = {settings.backend} needs definitions.local.path")
    return settings.path


def _documents_at(path: Path) -> list[Document]:
    """Return the file, or all `*.json` files of the directory in the order of their names."""
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        return [Document(file, file.read_bytes()) for file in files]
    except OSError as error:
        raise ConfigError(f"definitions: {error.filename or path}: {error.strerror}") from error


def _put_all(document: Document, broker: Broker) -> None:
    existing = broker.definitions
    entities = without_loose_bindings(document.entities(broker.default_queue_type), existing)
    put = passed = 0
    refused: list[str] = []
    for entity in entities:
        # Entities that exist already are not logged again: a start must not need room on a full disk.
        if is_passed_over(entity, existing) or is_same(entity, existing.by_kind[entity.kind].get(entity.key)):
            passed += 1
            continue
        try:
            broker.apply(Put(entity))
        except Refusal as error:
            refused.append(f"{place_of(entity)}: {' '.join(str(error).split())}")
            continue
        put += 1
    if refused:
        raise ConfigError(f"{document.file}: {'; '.join(refused)}; nothing was imported")
    logger.info("definitions_imported file=%s entities=%d passed_over=%d", document.file, put, passed)

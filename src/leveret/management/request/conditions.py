"""Conditional changes, by the header fields of RFC 9110: a change is made if its object is as its caller knows it.

The answer of a GET has the object's entity tag. A PUT or DELETE with `if-match` and this tag changes the object that
the caller has read, or nothing; a PUT with `if-none-match: *` makes a new object, or nothing. So a caller that reads a
definition, alters a field and writes all of it loses no change that was made in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from leveret.management.request.replies import BadRequest
from leveret.model.definitions import AnyEntity

IF_MATCH: Final = "if-match"
IF_NONE_MATCH: Final = "if-none-match"
_ANY: Final = "*"
_DIGEST_BYTES: Final = 16


def entity_tag(entity: AnyEntity) -> str:
    """The entity tag of a definition; definitions with the same fields have the same one."""
    octets = msgspec.json.encode(entity, order="deterministic")
    return f'"{hashlib.blake2b(octets, digest_size=_DIGEST_BYTES).hexdigest()}"'


def check_conditions(headers: Mapping[str, str], existing: AnyEntity | None) -> None:
    """Check the conditions of a change.

    Args:
        headers: of the request.
        existing: the object that the request names, None if there is none.

    Raises:
        BadRequest: one does not hold; nothing was changed.
    """
    present = set() if existing is None else {_ANY, entity_tag(existing)}
    wanted, unwanted = headers.get(IF_MATCH), headers.get(IF_NONE_MATCH)
    if wanted is not None and not present & _tags(wanted):
        raise _failed("the object is not the one that was read: somebody changed or deleted it meanwhile")
    if unwanted is not None and present & _tags(unwanted):
        raise _failed("the object exists")


def _tags(field: str) -> set[str]:
    """The tags of a header field; a comma in one would not be ours."""
    return {tag.strip() for tag in field.split(",")}


def _failed(reason: str) -> BadRequest:
    return BadRequest("precondition_failed", reason, HTTPStatus.PRECONDITION_FAILED)

"""Differences that are on purpose: each has its row in docs/deviations.md."""

from __future__ import annotations

import re
from typing import Final

from tests.conformance.conversations.play import Difference

KNOWN: Final = (
    # An HTTP body with a value of the wrong type.
    r"\(500[,)]",
    # An internal error instead of a reason: an invalid `x-stream-offset`, an argument of the wrong type.
    r"'Connection\.Close', 541, ",
)
"""What RabbitMQ's side of such a difference contains."""
_KNOWN: Final = re.compile("|".join(KNOWN))


_FAULTY_BODY: Final = re.compile(r"\(40[0-9], ")
"""RabbitMQ looks for the objects of a path before it reads a faulty body, and Leveret reads the body first."""


def is_known(difference: Difference) -> bool:
    """Whether a difference is on purpose."""
    rabbitmq, leveret = str(difference.rabbitmq), str(difference.leveret)
    if _FAULTY_BODY.search(rabbitmq) and "(400, {'error': 'bad_request'" in leveret:
        return True
    return _KNOWN.search(rabbitmq) is not None

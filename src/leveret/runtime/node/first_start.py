"""The default definitions of a new node."""

from __future__ import annotations

import os

from leveret.config.sections.access import AccessSettings
from leveret.core.broker.access import SALT_BYTES, hash_password
from leveret.core.broker.broker import Broker
from leveret.model import definitions as d


def seed(broker: Broker, access: AccessSettings) -> None:
    """Create the default vhost and its default user."""
    user, vhost = access.default_user, access.default_vhost
    password_hash = hash_password(access.default_pass, os.urandom(SALT_BYTES))
    queue_type = broker.default_queue_type
    default = d.Vhost(name=vhost, description="Default virtual host", default_queue_type=queue_type)
    broker.apply(d.Put(default))
    tags = tuple(sorted(access.default_tags))
    broker.apply(d.Put(d.User(name=user, password_hash=password_hash, tags=tags)))
    broker.apply(
        d.Put(
            d.Permission(
                user=user,
                vhost=vhost,
                configure=access.default_configure,
                write=access.default_write,
                read=access.default_read,
            )
        )
    )

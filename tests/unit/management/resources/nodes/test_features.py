from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

ClientAs = Callable[..., "Client"]


@pytest.mark.parametrize("path", ["feature-flags", "deprecated-features", "deprecated-features/used"])
def test_features_are_shown_to_all_users_of_the_api_and_to_nobody_else(
    node: FakeNode, client_as: ClientAs, anonymous: Client, path: str
) -> None:
    node.add_user("app", "management")
    node.add_user("other")
    assert client_as("app").get(f"/api/{path}").status_code == 200
    assert client_as("other").get(f"/api/{path}").status_code == 401
    assert anonymous.get(f"/api/{path}").status_code == 401


def test_flags_are_enabled_by_administrators(node: FakeNode, client_as: ClientAs) -> None:
    node.add_user("app", "management")
    assert client_as("app").put("/api/feature-flags/stream_queue/enable").status_code == 401
    assert client_as("guest").put("/api/feature-flags/stream_queue/enable").status_code == 204

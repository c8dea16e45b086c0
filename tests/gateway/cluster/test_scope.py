from __future__ import annotations

import pytest
from muster import v1 as wire

from gateway.wire_convert import to_roster

ROSTER = wire.Roster(
    gateways=[
        wire.GatewayEntry(name="all"),
        wire.GatewayEntry(name="first", ranks=[0, 1]),
        wire.GatewayEntry(name="second", ranks=[2, 3]),
    ]
)


@pytest.mark.parametrize(
    ("scope", "sharing"),
    [(None, ("all", "first", "second")), (frozenset({0, 1}), ("all", "first")), (frozenset({3}), ("all", "second"))],
)
def test_only_gateways_with_common_ranks_share_their_load(
    scope: frozenset[int] | None, sharing: tuple[str, ...]
) -> None:
    assert to_roster(ROSTER, scope).gateways == sharing

"""What operators are told before anything is done."""

from __future__ import annotations

import pytest

from services.cli.operate_command import UnknownRankError, _checked


def test_ranks_are_checked_before_the_first_one_is_touched() -> None:
    assert _checked([1, 0], range(3)) == [1, 0]
    with pytest.raises(
        UnknownRankError, match=r"RANKS: 5 does not exist; the deployment has ranks 0 to 2. Nothing was"
    ):
        _checked([1, 5], range(3))
    with pytest.raises(UnknownRankError, match="3, 9 do not exist"):
        _checked([3, 9], range(3))

"""Which member of a group has which experts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """One member's view: consecutive experts of every layer on each member, as evenly as it goes.

    Raises ValueError for a place that is not in the group.
    """

    index: int  # in the group
    size: int  # members of the group

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.size:
            raise ValueError(f"index: {self.index} is not in a group of {self.size}")

    def counts(self, num_experts: int) -> list[int]:
        """How many experts each member has."""
        least, num_larger = divmod(num_experts, self.size)
        return [least + (index < num_larger) for index in range(self.size)]

    def own(self, num_experts: int) -> range:
        """The experts of this member."""
        ends = list(accumulate(self.counts(num_experts), initial=0))
        return range(ends[self.index], ends[self.index + 1])

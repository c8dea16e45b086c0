"""Tokens on their way to the experts of other ranks and back. Belongs to the engine thread.

Letters: S members of the group, E experts of a layer, O of them on this member, P rows to send, Q rows received,
H hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.errors import GroupBrokenError
from engine.parallel.collectives import Collectives
from engine.parallel.placement import ExpertPlacement

# Computes rows with this member's experts. rows: [Q, H], those of its first expert first; counts: [O]. Returns [Q, H].
Compute = Callable[[Tensor, list[int]], Tensor]


class ExpertExchange:
    """One member's side of the exchanges of all layers, one after another, the same on all members.

    Without a group it only rehearses, for warming up: rows of other members' experts come back as zeros.
    """

    def __init__(self, placement: ExpertPlacement) -> None:
        self.placement = placement
        self.num_layers_done = 0  # of this step
        self.bytes_sent = 0  # to other members, since start
        self._group: Collectives | None = None
        self._rehearses = True

    @property
    def group(self) -> Collectives | None:
        """The group that rows go through."""
        return self._group

    def enter(self, group: Collectives | None) -> None:
        """From now on rows go through this group; None: through none, and they cannot be computed."""
        self._rehearses = False
        self._group = group
        self.num_layers_done = 0

    def __call__(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """rows: [P, H], those of the layer's first expert first; counts: [E] int64. Returns [P, H].

        Raises GroupBrokenError; when the own experts fail, the others' rows are lost with it.
        """
        if self._rehearses:
            return self._rehearse(rows, counts.tolist(), compute)
        group = self._group
        if group is None:
            raise GroupBrokenError("this rank is in no group, so that its tokens reach no experts of others")
        sent, theirs = self._swap_counts(group, counts)
        received = theirs.sum(dim=1).tolist()
        incoming = self._swap_rows(group, rows, received, sent)  # [Q, H] by sender, then by expert
        num_own = theirs.shape[1]
        expert_of_row = torch.arange(num_own, device=rows.device).repeat(group.size).repeat_interleave(theirs.flatten())
        order = expert_of_row.argsort(stable=True)
        try:
            computed = compute(incoming[order], theirs.sum(dim=0).tolist())
        except Exception as error:
            message = f"the experts of this rank failed: {type(error).__name__}: {error}"
            raise GroupBrokenError(message, own_fault=True) from error
        outgoing = torch.empty_like(computed)
        outgoing[order] = computed
        result = self._swap_rows(group, outgoing, sent, received)
        self.num_layers_done += 1
        return result

    def _swap_counts(self, group: Collectives, counts: Tensor) -> tuple[list[int], Tensor]:
        """Returns how many rows go to each member, and [S, O]: how many come from each for each own expert."""
        num_experts = len(counts)
        placed = self.placement.counts(num_experts)
        num_own = placed[group.index]
        theirs = counts.new_empty(group.size * num_own)
        group.all_to_all(theirs, counts, [num_own] * group.size, placed)
        self.bytes_sent += (num_experts - num_own) * counts.itemsize
        sent = [int(part.sum()) for part in torch.split(counts.cpu(), placed)]
        return sent, theirs.view(group.size, num_own)

    def _swap_rows(self, group: Collectives, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        out = rows.new_empty(sum(received), rows.shape[1])
        group.all_to_all(out, rows.contiguous(), received, sent)
        self.bytes_sent += (len(rows) - sent[group.index]) * rows.shape[1] * rows.itemsize
        return out

    def _rehearse(self, rows: Tensor, counts: list[int], compute: Compute) -> Tensor:
        own = self.placement.own(len(counts))
        begin, length = sum(counts[: own.start]), sum(counts[own.start : own.stop])
        out = torch.zeros_like(rows)
        out[begin : begin + length] = compute(rows[begin : begin + length], counts[own.start : own.stop])
        return out

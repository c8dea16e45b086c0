"""Log-probabilities of tokens and of their rivals, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import TokenLogprobs
from engine.transfer import Download, upload


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """The logprobs of R rows of logits on their way to the host.

    Computed in float32. The rank counts the tokens that are strictly more likely.
    """

    num_alternatives: tuple[int, ...]  # [R] rivals asked for
    _values: Download

    @classmethod
    def launch(cls, logits: Tensor, token_ids: Tensor, num_alternatives: Sequence[int]) -> LogprobRows:
        """logits: [R, V]; token_ids: [R], the token that each row is about. Does not wait for the device."""
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        chosen = logprobs.gather(1, token_ids[:, None])  # [R, 1]
        ranks = (logprobs > chosen).sum(dim=-1).add_(1)
        width = min(max(num_alternatives), logits.shape[1])
        top_values, top_ids = logprobs.topk(width, dim=-1)
        return cls(tuple(num_alternatives), Download([token_ids, chosen.flatten(), ranks, top_ids, top_values]))

    def entries(self) -> list[TokenLogprobs]:
        """One per row."""
        columns = (tensor.tolist() for tensor in self._values.wait())
        return [
            TokenLogprobs(
                token_id=token_id,
                logprob=logprob,
                rank=rank,
                top_token_ids=tuple(ids[:count]),
                top_logprobs=tuple(values[:count]),
            )
            for token_id, logprob, rank, ids, values, count in zip(*columns, self.num_alternatives, strict=True)
        ]


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_alternatives: Sequence[int]) -> list[TokenLogprobs]:
    """One entry per row of `logits` [R, V]: for the token of that row, with as many rivals as asked."""
    return LogprobRows.launch(logits, upload(token_ids, logits.device), num_alternatives).entries()

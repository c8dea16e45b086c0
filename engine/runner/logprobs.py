"""Log-probabilities of tokens and of their rivals, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.request import TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_alternatives: Sequence[int]) -> list[TokenLogprobs]:
    """One entry per row of `logits` [R, V]: for the token of that row, with as many rivals as asked.

    Computed in float32. The rank counts the tokens that are strictly more likely.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])  # [R, 1]
    ranks = (logprobs > chosen).sum(dim=-1).add_(1).tolist()
    width = min(max(num_alternatives), logits.shape[1])
    top_values, top_ids = (x.tolist() for x in logprobs.topk(width, dim=-1))
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top_token_ids=tuple(ids[:count]),
            top_logprobs=tuple(values[:count]),
        )
        for token_id, (logprob,), rank, ids, values, count in zip(
            token_ids, chosen.tolist(), ranks, top_ids, top_values, num_alternatives, strict=True
        )
    ]

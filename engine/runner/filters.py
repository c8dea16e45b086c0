"""Top-k, top-p and min-p as one threshold per row: tokens below it cannot be chosen.

A threshold is a value, so tokens tied with the last one kept are kept too; which of them are sampled does
then not depend on how a sort breaks ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.transfer import upload

# Candidates that are sorted at first; a nucleus is rarely wider, and a full sort costs ten times as much.
_NUM_CANDIDATES = 256


def filter_logits(
    logits: Tensor,
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    unsure: list[Tensor] | None = None,
) -> Tensor:
    """Returns [R, V] with -inf where a token is filtered out; `logits` are divided by the temperature.

    Order: min-p, then top-k, then top-p over what is left, renormalised. top_k 0, top_p 1 and min_p 0 keep
    everything; at least the most likely token always stays. Whether a nucleus is so wide that its row has to be sorted
    entirely is only known once all is computed: with `unsure` nobody waits for that, and a bool scalar that is true
    when the result is not right for such a row is added to it.
    """
    if any(p > 0 for p in min_p):
        shares = upload(min_p, logits.device)[:, None].log()  # -inf for 0 keeps all
        logits = _drop_below(logits, logits.amax(dim=-1, keepdim=True) + shares)
    rows = [i for i, (k, p) in enumerate(zip(top_k, top_p, strict=True)) if k > 0 or p < 1]
    if not rows:
        return logits
    vocab_size = logits.shape[1]
    ks = [top_k[i] if 0 < top_k[i] < vocab_size else vocab_size for i in rows]
    ps = [top_p[i] for i in rows]
    if len(rows) == len(logits):
        return _filter(logits, ks, ps, unsure)
    index = upload(rows, logits.device)
    return logits.index_copy(0, index, _filter(logits[index], ks, ps, unsure))


def _filter(logits: Tensor, ks: list[int], ps: list[float], unsure: list[Tensor] | None) -> Tensor:
    """Top-k, then top-p. ks: 1 to V each, V keeps all; ps: 0 to 1 each."""
    vocab_size = logits.shape[1]
    limited = [k for k in ks if k < vocab_size]
    width = min(vocab_size, max([_NUM_CANDIDATES, *limited]))
    candidates = logits.topk(width, dim=-1).values  # [R, W], descending
    if limited:
        last = upload([min(k, width) - 1 for k in ks], logits.device)[:, None]
        unlimited = upload([k >= vocab_size for k in ks], logits.device)[:, None]
        thresholds = candidates.gather(1, last).masked_fill(unlimited, -torch.inf)
        logits, candidates = _drop_below(logits, thresholds), _drop_below(candidates, thresholds)
    if all(p >= 1 for p in ps):
        return logits
    limits = upload(ps, logits.device)[:, None]
    thresholds, reached = _nucleus_thresholds(logits, candidates, limits)
    # A nucleus that the candidates do not reach may extend beyond them: those rows are sorted entirely.
    may_be_wide = [k > width and p < 1 for k, p in zip(ks, ps, strict=True)]
    if unsure is not None:
        if any(may_be_wide):
            unsure.append((~reached & upload(may_be_wide, logits.device)).any())
        return _drop_below(logits, thresholds)
    wide = [row for row, enough in enumerate(reached.tolist()) if not enough and may_be_wide[row]]
    if wide:
        ordered = logits[wide].sort(dim=-1, descending=True).values
        thresholds[wide] = _nucleus_thresholds(logits[wide], ordered, limits[wide])[0]
    return _drop_below(logits, thresholds)


def _nucleus_thresholds(logits: Tensor, ordered: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest value of the smallest set of most likely tokens whose probabilities reach the limit.

    ordered: [R, W], the largest of `logits` [R, V], descending; limits: [R, 1]. Returns the thresholds
    [R, 1], and [R] whether the W values reach the limit.
    """
    probabilities = (ordered - logits.logsumexp(dim=-1, keepdim=True)).exp()
    sums = probabilities.cumsum(dim=-1)
    num_kept = ((sums - probabilities) < limits).sum(dim=-1, keepdim=True).clamp_(min=1)
    thresholds = ordered.gather(1, num_kept - 1).masked_fill(limits >= 1, -torch.inf)
    return thresholds, (sums[:, -1:] >= limits).flatten()


def _drop_below(logits: Tensor, thresholds: Tensor) -> Tensor:
    return logits.masked_fill(logits < thresholds, -torch.inf)

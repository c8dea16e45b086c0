"""A mixture of experts: each token goes to the few experts that its router gives the highest probability.

Letters: T tokens, H hidden, E experts of the layer, A experts of one token, P = T * A pairs of token and expert.
Sources of the definitions: Mixtral (arXiv 2401.04088), Qwen2-MoE and Qwen3-MoE as Hugging Face's config.json describes
them (`num_experts_per_tok`, `norm_topk_prob`, `shared_expert_intermediate_size`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.config import ExpertConfig
from engine.model.feed_forward import FeedForward
from engine.model.weight_loader import WeightLoader
from engine.parallel.exchange import ExpertExchange
from engine.parallel.placement import ExpertPlacement


class MixtureOfExperts:
    """One layer's router and experts."""

    def __init__(
        self, prefix: str, config: ExpertConfig, load: WeightLoader, exchange: ExpertExchange | None = None
    ) -> None:
        """With `exchange` only this rank's share of the experts is loaded, and tokens go to the others' through it."""
        self._num_experts = config.num_experts
        self._num_active = config.num_active
        self._normalised = config.normalised
        self._router = load.linear([f"{prefix}.gate"])
        self._exchange = exchange
        self._load_expert: Callable[[int], FeedForward] = lambda expert: FeedForward(f"{prefix}.experts.{expert}", load)
        self._own: dict[int, FeedForward] = {}
        self._experts = self._take(
            range(self._num_experts) if exchange is None else exchange.placement.own(self._num_experts)
        )
        self._shared = self._shared_gate = None
        if config.shared_intermediate_size:
            self._shared = FeedForward(f"{prefix}.shared_expert", load)
            self._shared_gate = load.linear([f"{prefix}.shared_expert_gate"])
        gate = load.tensor(f"{prefix}.gate.weight")
        self._no_rows = gate.new_empty(0, gate.shape[1])  # [0, H]

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, H]. Returns [T, H]."""
        weights, chosen = self._route(x)
        order = chosen.flatten().argsort(stable=True)  # [P] pairs by expert
        counts = torch.bincount(chosen.flatten(), minlength=self._num_experts)  # [E]
        sorted_out = self._compute(x[order // self._num_active], counts)
        out = torch.empty_like(sorted_out)
        out[order] = sorted_out
        # Summed in the order of the token's own experts, whoever computed them and beside whom.
        out = (out.view(len(x), self._num_active, -1) * weights[:, :, None]).sum(dim=1)
        if self._shared is not None and self._shared_gate is not None:
            out += self._shared_gate(x).sigmoid() * self._shared(x)
        return out

    def place(self, placement: ExpertPlacement) -> None:
        """Loads what this rank has not yet of its experts, and frees what is others' now.

        A load that fails leaves it without some; no group is formed then, and the next call loads them.
        """
        own = placement.own(self._num_experts)
        if list(self._own) == list(own):
            return
        self._experts = LocalExperts([])  # or it would hold what is freed to make room
        with torch.inference_mode():
            self._experts = self._take(own)

    def serve(self) -> None:
        """Computes other ranks' tokens, in an exchange without any of this rank."""
        with torch.inference_mode():
            self._compute(self._no_rows, torch.zeros(self._num_experts, dtype=torch.int64, device=self._no_rows.device))

    def _take(self, own: range) -> LocalExperts:
        self._own = {expert: self._own[expert] for expert in own if expert in self._own}  # first, to make room
        for expert in own:
            if expert not in self._own:
                self._own[expert] = self._load_expert(expert)
        self._own = {expert: self._own[expert] for expert in own}
        return LocalExperts(list(self._own.values()))

    def _compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows: [P, H], those of the first expert first; counts: [E]. Returns [P, H]."""
        if self._exchange is None:
            return self._experts(rows, counts.tolist())
        return self._exchange(rows, counts, self._experts)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [T, H]. Returns the weights and the numbers of each token's experts, [T, A] each, the heaviest first."""
        probabilities = F.softmax(self._router(x), dim=-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self._num_active, dim=-1)
        if self._normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights.to(x.dtype), chosen


class LocalExperts:
    """Experts of one layer that lie in this process."""

    def __init__(self, experts: list[FeedForward]) -> None:
        self._experts = experts

    def __call__(self, rows: Tensor, counts: list[int]) -> Tensor:
        """rows: [P, H], those of the first expert first; counts: [E] how many are each one's. Returns [P, H]."""
        out = torch.empty_like(rows)
        begin = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                out[begin : begin + count] = expert(rows[begin : begin + count])
                begin += count
        return out

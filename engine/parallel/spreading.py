"""Start-up of a rank whose experts are spread: whether they can be, and what the rank shares with its group."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.facts import ModelFacts
from engine.model.checkpoint import Checkpoint
from engine.model.llama import Llama
from engine.parallel.exchange import ExpertExchange
from engine.parallel.lockstep import ExpertLayer
from engine.parallel.placement import ExpertPlacement


@dataclass(slots=True)
class SpreadExperts:
    """What a rank of a group shares with the others."""

    exchange: ExpertExchange
    layers: tuple[ExpertLayer, ...]
    num_experts: int
    device: torch.device
    model_fingerprint: str

    @property
    def fingerprint(self) -> int:
        """63 bits, equal on all members of a group: of the model, the number format and the placement."""
        digest = hashlib.sha256(f"{self.model_fingerprint} {self.exchange.placement.size}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def place(self, placement: ExpertPlacement) -> None:
        """Spreads the experts anew; only between groups. Layers that have theirs already do nothing.

        Raises ValueError, and what loading raises. Then the placement is the old one, and layers may have what they
        have: the next placing puts all of them right, whichever it is.
        """
        if placement.size > self.num_experts:
            raise ValueError(f"members: {self.num_experts} experts do not give each of {placement.size} ranks one")
        for layer in self.layers:
            layer.place(placement)
        self.exchange.placement = placement


def open_exchange(config: EngineConfig, checkpoint: Checkpoint) -> ExpertExchange | None:
    """The exchange of a rank in a group; None where a rank has all experts itself.

    Raises CheckpointError for a model whose experts cannot be spread.
    """
    if not config.expert_parallel:
        return None
    experts = checkpoint.config.experts
    if experts is None:
        raise CheckpointError(
            f"enable_expert_parallel: {config.model_path} is a dense model ({checkpoint.config.architecture}), which "
            "has no experts to spread over ranks; leave it out"
        )
    if experts.num_experts < config.group_size:
        raise CheckpointError(
            f"enable_expert_parallel: the {experts.num_experts} experts of {config.model_path} do not give each of "
            f"{config.group_size} ranks one; lower data_parallel_size"
        )
    return ExpertExchange(ExpertPlacement(config.group_index, config.group_size)) if config.group_size > 1 else None


def num_own_parameters(checkpoint: Checkpoint, exchange: ExpertExchange | None) -> int:
    """Parameters that this rank loads."""
    experts = checkpoint.config.experts
    if experts is None or exchange is None:
        return checkpoint.num_parameters
    own = exchange.placement.own(experts.num_experts)
    num_elsewhere = experts.num_experts - len(own)
    num_layers = checkpoint.config.num_layers - len(experts.dense_layers)
    per_expert = 3 * experts.intermediate_size * checkpoint.config.hidden_size
    return checkpoint.num_parameters - num_layers * num_elsewhere * per_expert


def spread_experts(
    model: object, exchange: ExpertExchange | None, facts: ModelFacts, device: torch.device
) -> SpreadExperts | None:
    """What is shared; None where nothing is."""
    if exchange is None or not isinstance(model, Llama):
        return None
    return SpreadExperts(exchange, tuple(model.expert_layers), facts.num_experts, device, facts.fingerprint)

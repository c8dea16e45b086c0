from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from engine.parallel.exchange import ExpertExchange
from engine.parallel.placement import ExpertPlacement
from engine.parallel.spreading import SpreadExperts


@dataclass
class Layer:
    placement: ExpertPlacement
    fails: bool = False  # once

    def place(self, placement: ExpertPlacement) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError
        self.placement = placement

    def serve(self) -> None:
        raise NotImplementedError


def test_a_placement_that_failed_half_way_is_made_anew() -> None:
    """Asked for the same one again, or for the one before, each layer has it afterwards."""
    before, after = ExpertPlacement(0, 2), ExpertPlacement(0, 1)
    for wanted in (after, before):
        exchange = ExpertExchange(before)
        layers = (Layer(before), Layer(before, fails=True))
        spread = SpreadExperts(exchange, layers, num_experts=4, device=torch.device("cpu"), model_fingerprint="m")
        with pytest.raises(MemoryError):
            spread.place(after)
        spread.place(wanted)
        assert [layer.placement for layer in layers] == [wanted] * 2

"""An unquantised checkpoint of a model that is only to be had quantised.

Blocks of 32 weights that were once on a grid find back to it, so that quantising dequantised weights again seems to
cost nothing. Here the dimensions are put into another order first: the model computes the same, and no block's weights
share a grid any more.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.loading import open_checkpoint
from tests.support.tiny_model import huggingface_config


def reordered(config: ModelConfig, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same function with hidden and intermediate dimensions, and those of each head's values, in another order."""
    generator = torch.Generator().manual_seed(0)
    group = config.num_heads // config.num_kv_heads
    of_head = torch.stack([torch.randperm(config.head_dim, generator=generator) for _ in range(config.num_kv_heads)])
    values_order = (of_head + config.head_dim * torch.arange(config.num_kv_heads)[:, None]).flatten()
    heads = of_head.repeat_interleave(group, dim=0)
    attended_order = (heads + config.head_dim * torch.arange(config.num_heads)[:, None]).flatten()
    hidden = torch.randperm(config.hidden_size, generator=generator)
    inner = torch.randperm(config.intermediate_size, generator=generator)
    result = {}
    for name, values in state.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values = values[hidden]
        elif values.shape[-1] == config.hidden_size:
            values = values[..., hidden]
        if "gate_proj" in name or "up_proj" in name:
            values = values[inner]
        elif "down_proj" in name:
            values = values[:, inner]
        elif "v_proj" in name:
            values = values[values_order]
        elif "o_proj" in name:
            values = values[:, attended_order]
        result[name] = values.contiguous()
    return result


def write_reordered(path: Path, directory: Path) -> Path:
    """The model of a GGUF file as a Hugging Face directory in bfloat16, without a tokenizer. Returns it."""
    checkpoint = open_checkpoint(path)
    state = {name: checkpoint.weights.read(name) for name in checkpoint.weights.names()}
    directory.mkdir(parents=True, exist_ok=True)
    halves = {name: values.bfloat16() for name, values in reordered(checkpoint.config, state).items()}
    save_file(halves, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(huggingface_config(checkpoint.config)))
    return directory

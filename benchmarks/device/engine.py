"""Engines for the device check: random models without a download, and requests run to their end."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.request import FinishReason, Request, TokenLogprobs
from engine.stats import StepStats

Settings = dict[str, Any]  # fields of EngineConfig

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
EOS_TOKEN_ID = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a random model."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    sliding_window: int | None = None
    max_position: int = 8192


TINY = Shape(64, 128, 2, 4, 2, 16, 320)
SMALL = Shape(1024, 2816, 6, 16, 4, 64, 4096)
SMALL_WINDOW = Shape(1024, 2816, 4, 8, 2, 128, 4096, sliding_window=96)
LARGE = Shape(2048, 5632, 16, 32, 8, 64, 32000)


def write_random_model(directory: Path, shape: Shape) -> Path:
    """A directory for `load_format="dummy"`: a configuration, and a tokenizer of bytes for grammars."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM" if shape.sliding_window is None else "MistralForCausalLM"],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position,
        "sliding_window": shape.sliding_window,
        "eos_token_id": EOS_TOKEN_ID,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    others = sorted(set(range(256)).difference(_PRINTABLE))
    symbols = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    tokenizer = {
        "model": {"type": "BPE", "vocab": {symbol: byte for byte, symbol in symbols.items()}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": EOS_TOKEN_ID, "content": "<|end|>", "special": True}],
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


@dataclass(slots=True)
class Answer:
    """What one request got."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    error: str = ""


class DeviceEngine:
    """A built engine, stepped on this thread."""

    def __init__(self, model: Path, **config: Any) -> None:
        values = {"load_format": "auto" if model.suffix == ".gguf" else "dummy", "kernels": "torch"}
        self.built: BuiltEngine = build_engine(EngineConfig(model, **(values | config)))
        self.runner: Any = self.built.core._runner
        self.steps: list[StepStats] = []

    def run(self, requests: Sequence[Request]) -> list[Answer]:
        """All requests at once, to their ends; one answer each, in order. `steps` are those of this run."""
        core = self.built.core
        for request in requests:
            core.add(request)
        answers = {request.request_id: Answer() for request in requests}
        self.steps = []
        while core.has_work:
            result = core.step()
            self.steps.append(result.stats)
            for output in result.outputs:
                answer = answers[output.request_id]
                answer.token_ids += output.token_ids
                answer.logprobs += output.logprobs
                if output.prompt is not None:
                    answer.prompt_logprobs = output.prompt.logprobs
                    answer.num_cached_tokens = output.prompt.cached_tokens
                if output.finish_reason is FinishReason.ERROR:
                    answer.error = output.error
        return list(answers.values())


@contextmanager
def engine(model: Path, **config: Any) -> Iterator[DeviceEngine]:
    """An engine whose device memory is free again afterwards."""
    built = DeviceEngine(model, **config)
    try:
        yield built
    finally:
        built.__dict__.clear()
        del built
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

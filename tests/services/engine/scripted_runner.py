"""A forward pass without a model: what it answers is a function of the prompt, and tests can hold or break it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from engine.batch import Batch, Sampled, StepToken
from engine.core import EngineCore
from engine.facts import DefaultSampling, ModelFacts
from engine.request import TokenLogprobs

BREAKING_TOKEN_ID = 999  # a prompt that has it makes its steps raise

FACTS = ModelFacts(
    architecture="scripted",
    dtype="float32",
    quantization="",
    vocab_size=1000,
    max_model_len=4096,
    eos_token_ids=(0,),
    bos_token_id=None,
    num_parameters=1,
    fingerprint="scripted",
    embedding_size=4,
    default_sampling=DefaultSampling(temperature=0.5),
)
NUM_BLOCKS = 8192


def expected_tokens(prompt_token_ids: list[int], num_tokens: int) -> list[int]:
    """What the script answers to a prompt: never 0, the end-of-sequence token."""
    return [1 + (sum(prompt_token_ids) + position) % 900 for position in range(num_tokens)]


def expected_embedding(prompt_token_ids: Sequence[int]) -> tuple[float, ...]:
    """What the script makes of a prompt, whatever the pooling."""
    return (float(len(prompt_token_ids)), float(sum(prompt_token_ids)), 0.0, -1.0)


class ScriptedRunner:
    """`gate` holds every step while it is clear."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.forgotten: list[str] = []

    def execute(self, batch: Batch) -> list[StepToken]:
        self.gate.wait(timeout=30)
        time.sleep(0.0002)  # a step that takes no time at all would starve the event loop of the interpreter lock
        results = []
        for item in batch.scheduled:
            request = item.sequence.request
            if BREAKING_TOKEN_ID in request.prompt_token_ids:
                raise RuntimeError("the script breaks here")
            if request.pooling is not None:
                results.append(StepToken(None, embedding=expected_embedding(request.prompt_token_ids)))
                continue
            position = item.sequence.num_tokens - item.sequence.num_prompt_tokens
            token_id = 1 + (sum(request.prompt_token_ids) + position) % 900
            logprobs = None
            if request.logprobs is not None:
                rivals = tuple(range(request.logprobs))
                logprobs = TokenLogprobs(token_id, -0.5, 1, rivals, tuple(-1.0 for _ in rivals))
            results.append(StepToken(Sampled(token_id, logprobs) if item.samples else None))
        return results

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


def scripted_core(runner: ScriptedRunner) -> EngineCore:
    """The real core around the scripted forward pass."""
    return EngineCore(
        runner,
        num_blocks=NUM_BLOCKS,
        block_size=16,
        vocab_size=FACTS.vocab_size,
        max_model_len=FACTS.max_model_len,
        eos_token_ids=FACTS.eos_token_ids,
        embedding_size=FACTS.embedding_size,
    )

"""Runs a batch through the model and samples it: the engine's one way to torch."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.batch import Batch, Scheduled, StepToken
from engine.request import TokenLogprobs
from engine.runner.batch_tensors import BatchTensors
from engine.runner.logprobs import token_logprobs
from engine.runner.pooler import Pooler
from engine.runner.sampler import Sampler

# Rows of float32 logits that exist at a time while a prompt is scored: 64 rows of 150,000 are 38 MB.
_PROMPT_LOGITS_ROWS = 64


class Transformer(Protocol):
    """The model as the runner sees it; `engine.model.llama` says what the calls mean."""

    @property
    def device(self) -> torch.device: ...

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor: ...

    def normalized(self, hidden: Tensor) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class ModelRunner:
    """Implements the engine core's Runner. Belongs to one thread at a time."""

    def __init__(
        self,
        model: Transformer,
        attention: AttentionBackend,
        sampler: Sampler,
        *,
        block_size: int,
        num_threads: int | None = None,
    ) -> None:
        """`num_threads` of torch's CPU kernels; None leaves torch's setting alone."""
        self._model = model
        self._attention = attention
        self._sampler = sampler
        self._pooler = Pooler()
        self._block_size = block_size
        self._num_threads = num_threads
        self._thread_id = 0

    def execute(self, batch: Batch) -> list[StepToken]:
        """Computes all scheduled tokens; one result per scheduled sequence, in order."""
        self._set_threads()
        with torch.inference_mode():
            tensors = BatchTensors.build(batch, self._block_size, self._model.device)
            self._sampler.prepare([item.sequence for item in batch.scheduled if item.samples])
            self._attention.plan(tensors.attention)
            hidden = self._model.forward(tensors.token_ids, tensors.positions, self._attention)
            results = [StepToken(sampled=None, prompt_logprobs=()) for _ in batch.scheduled]
            self._sample(batch, tensors, hidden, results)
            return results

    def forget(self, request_id: str) -> None:
        """The sequence ended: what sampler and pooler know of it is dropped."""
        self._sampler.forget(request_id)
        self._pooler.forget(request_id)

    def _sample(self, batch: Batch, tensors: BatchTensors, hidden: Tensor, results: list[StepToken]) -> None:
        """Fills `results`. hidden: [T, H]."""
        rows: list[int] = []
        sampled: list[int] = []
        for index, first_row in zip(tensors.order, tensors.first_rows, strict=True):
            item = batch.scheduled[index]
            sequence = item.sequence
            if sequence.wants_prompt_logprobs:
                logprobs = self._prompt_logprobs(item, hidden[first_row : first_row + item.num_new_tokens])
                results[index] = StepToken(sampled=None, prompt_logprobs=logprobs)
            if sequence.request.pooling is not None:
                own = self._model.normalized(hidden[first_row : first_row + item.num_new_tokens])
                results[index] = replace(results[index], embedding=self._pooler.add(item, own))
            if item.samples and sequence.request.stop.max_tokens != 0:
                rows.append(first_row + item.num_new_tokens - 1)
                sampled.append(index)
        if not rows:
            return
        logits = self._model.logits(hidden if len(rows) == len(hidden) else hidden[rows])
        choices = self._sampler.sample(logits, [batch.scheduled[index].sequence for index in sampled])
        for index, choice in zip(sampled, choices, strict=True):
            results[index] = replace(results[index], sampled=choice)

    def _prompt_logprobs(self, item: Scheduled, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """hidden: [new tokens, H]; the row of position p predicts the prompt's token p + 1."""
        sequence = item.sequence
        begin = sequence.num_computed
        targets = sequence.token_ids[begin + 1 : sequence.num_prompt_tokens][: item.num_new_tokens]
        num_alternatives = sequence.request.prompt_logprobs or 0
        entries: list[TokenLogprobs] = []
        for first in range(0, len(targets), _PROMPT_LOGITS_ROWS):
            part = targets[first : first + _PROMPT_LOGITS_ROWS]
            logits = self._model.logits(hidden[first : first + len(part)])
            entries += token_logprobs(logits, part, [num_alternatives] * len(part))
        return tuple(entries)

    def _set_threads(self) -> None:
        """OpenMP keeps the number of threads per calling thread, so the engine thread sets it itself."""
        thread_id = threading.get_ident()
        if self._num_threads is not None and thread_id != self._thread_id:
            torch.set_num_threads(self._num_threads)
            self._thread_id = thread_id

"""Runs a batch through the model and samples it: the engine's one way to torch."""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.batch import Batch, Scheduled, StepToken
from engine.runner.batch_tensors import BatchTensors
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.logprobs import LogprobRows
from engine.runner.plain_decode import Decoder, PlainDecode
from engine.runner.pooler import Pooler
from engine.runner.sampler import Choices, Sampler
from engine.transfer import upload

# Rows of float32 logits that exist at a time while a prompt is scored: 64 rows of 150,000 are 38 MB.
_PROMPT_LOGITS_ROWS = 64


class Transformer(Protocol):
    """The model as the runner sees it; `engine.model.llama` says what the calls mean."""

    @property
    def device(self) -> torch.device: ...

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor: ...

    def normalized(self, hidden: Tensor) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class LaunchedStep:
    """A step that was handed to the device. Host work done before `result` is called overlaps with it."""

    def __init__(self, num_results: int) -> None:
        self.choices: Choices | None = None
        self.sampled: list[int] = []  # which results the choices are of
        self.prompts: dict[int, list[LogprobRows]] = {}
        self.embeddings: dict[int, tuple[float, ...] | None] = {}
        self._num_results = num_results

    def result(self) -> list[StepToken]:
        """One per scheduled sequence, in order. Waits for the device; call it once, before the next launch."""
        with torch.inference_mode():
            choices = self.choices.result() if self.choices is not None else []
        sampled = dict(zip(self.sampled, choices, strict=True))
        return [
            StepToken(
                sampled=sampled.get(index),
                prompt_logprobs=tuple(entry for rows in self.prompts.get(index, ()) for entry in rows.entries()),
                embedding=self.embeddings.get(index),
            )
            for index in range(self._num_results)
        ]


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
        decode_graphs: DecodeGraphs | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """`num_threads` of torch's CPU kernels; None leaves torch's setting alone. `decode_graphs` are of this model
        and this attention; `decoder` is this model, where it can be one."""
        self._model = model
        self._attention = attention
        self._sampler = sampler
        self._pooler = Pooler()
        self._block_size = block_size
        self._num_threads = num_threads
        self._decode_graphs = decode_graphs
        self._plain_decode = None if decoder is None else PlainDecode(decoder, sampler)
        self._thread_id = 0

    def execute(self, batch: Batch) -> list[StepToken]:
        """Computes all scheduled tokens; one result per scheduled sequence, in order."""
        self._enter_thread()
        if self._plain_decode is not None and (step_tokens := self._plain_decode.execute(batch)) is not None:
            return step_tokens
        return self.launch(batch).result()

    def launch(self, batch: Batch) -> LaunchedStep:
        """Hands a step to the device without waiting for it; on a CPU the step is done when this returns.

        What the batch's sequences hold must not change before the result is taken.
        """
        self._enter_thread()
        with torch.inference_mode():
            tensors = BatchTensors.build(batch, self._block_size, self._model.device)
            self._sampler.prepare([item.sequence for item in batch.scheduled if item.samples])
            hidden = self._forward(tensors)
            return self._launch_sampling(batch, tensors, hidden)

    def forget(self, request_id: str) -> None:
        """The sequence ended: what sampler and pooler know of it is dropped."""
        self._sampler.forget(request_id)
        self._pooler.forget(request_id)

    def _forward(self, tensors: BatchTensors) -> Tensor:
        """Returns [T, H]."""
        if self._decode_graphs is not None and self._decode_graphs.takes(tensors):
            return self._decode_graphs.forward(tensors)
        self._attention.plan(tensors.attention)
        return self._model.forward(tensors.token_ids, tensors.positions, self._attention)

    def _launch_sampling(self, batch: Batch, tensors: BatchTensors, hidden: Tensor) -> LaunchedStep:
        """hidden: [T, H]."""
        launched = LaunchedStep(len(batch.scheduled))
        rows: list[int] = []
        for index, first_row in zip(tensors.order, tensors.first_rows, strict=True):
            item = batch.scheduled[index]
            sequence = item.sequence
            if sequence.wants_prompt_logprobs:
                launched.prompts[index] = self._prompt_logprobs(
                    item, hidden[first_row : first_row + item.num_new_tokens]
                )
            if sequence.request.pooling is not None:
                own = self._model.normalized(hidden[first_row : first_row + item.num_new_tokens])
                launched.embeddings[index] = self._pooler.add(item, own)
            if item.samples and sequence.request.stop.max_tokens != 0:
                rows.append(first_row + item.num_new_tokens - 1)
                launched.sampled.append(index)
        if rows:
            logits = self._model.logits(hidden if len(rows) == len(hidden) else hidden[upload(rows, hidden.device)])
            launched.choices = self._sampler.launch(
                logits, [batch.scheduled[index].sequence for index in launched.sampled]
            )
        return launched

    def _prompt_logprobs(self, item: Scheduled, hidden: Tensor) -> list[LogprobRows]:
        """hidden: [new tokens, H]; the row of position p predicts the prompt's token p + 1."""
        sequence = item.sequence
        begin = sequence.num_computed
        targets = sequence.token_ids[begin + 1 : sequence.num_prompt_tokens][: item.num_new_tokens]
        num_alternatives = sequence.request.prompt_logprobs or 0
        parts: list[LogprobRows] = []
        for first in range(0, len(targets), _PROMPT_LOGITS_ROWS):
            part = targets[first : first + _PROMPT_LOGITS_ROWS]
            logits = self._model.logits(hidden[first : first + len(part)])
            parts.append(LogprobRows.launch(logits, upload(part, logits.device), [num_alternatives] * len(part)))
        return parts

    def _enter_thread(self) -> None:
        """OpenMP keeps the number of threads per calling thread, and CUDA its current device, so the engine thread
        sets both itself."""
        thread_id = threading.get_ident()
        if thread_id == self._thread_id:
            return
        self._thread_id = thread_id
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        if self._model.device.type == "cuda":
            torch.cuda.set_device(self._model.device)

"""Which tokens a batch's grammars allow next, found out while the forward pass runs."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from engine.grammar.matcher import Matcher
from engine.grammar.worker import deep_stack_worker
from engine.sequence import Sequence


class TokenMasks:
    """`start` before the forward pass, `take` after it; of sequences without a constraint nothing is known here."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._worker: ThreadPoolExecutor | None = None
        self._running: Future[Tensor] | None = None
        self._rows: dict[str, int] = {}

    def start(self, sequences: Rows[Sequence]) -> None:
        """Begins with the tokens that may follow each of the sequences."""
        if self._running is not None:  # of a step that failed: its matchers may be used by one thread only
            self._running.exception()
        constrained = [(sequence, matcher) for sequence in sequences if (matcher := sequence.matcher) is not None]
        if not constrained:
            self._running = None
            return
        self._rows = {sequence.request_id: row for row, (sequence, _) in enumerate(constrained)}
        work = [
            (matcher, sequence.token_ids[sequence.num_prompt_tokens + matcher.num_taken :])
            for sequence, matcher in constrained
        ]
        if self._worker is None:
            self._worker = deep_stack_worker("grammar-masks")
        self._running = self._worker.submit(self._compute, work)

    def take(self, sequences: Rows[Sequence]) -> Tensor:
        """[R, V] bool on the CPU: true where a token must not follow. All must have been among those started."""
        assert self._running is not None, "masks are taken without having been started"
        forbidden = self._running.result()
        rows = [self._rows[sequence.request_id] for sequence in sequences]
        return forbidden if rows == list(range(len(forbidden))) else forbidden[rows]

    def _compute(self, work: list[tuple[Matcher, list[int]]]) -> Tensor:
        words = np.zeros((len(work), -(-self._vocab_size // 32)), dtype=np.int32)
        for row, (matcher, token_ids) in enumerate(work):
            matcher.take(token_ids)
            matcher.fill(words[row])
        allowed = np.unpackbits(words.view(np.uint8), axis=1, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(allowed ^ 1).view(torch.bool)

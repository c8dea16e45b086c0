"""Chooses the next token of each sequence, vectorised over the batch.

Order: allowed tokens, bad words and min_tokens, logit bias, penalties, constraint, temperature, min-p, top-k, top-p,
noise.
A sequence that asks for none of it costs its share of one arg max. The choice for a sequence depends on its own
logits, tokens and parameters only.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from engine.batch import Sampled
from engine.runner.filters import filter_logits
from engine.runner.logprobs import LogprobRows
from engine.runner.noise import gumbel_noise, noise_key
from engine.runner.penalties import PenaltyTable
from engine.runner.sampling_plan import SamplingPlan
from engine.runner.token_masks import TokenMasks
from engine.sequence import Sequence
from engine.transfer import Download, upload

# Temporaries of so many numbers stay in a core's cache; drawing all rows at once takes three times as long.
_CPU_CHUNK_ELEMENTS = 1 << 17


class Choices:
    """Tokens that were chosen and are on their way to the host."""

    def __init__(
        self,
        token_ids: Tensor,
        unsure: list[Tensor],
        logprobs: tuple[list[int], LogprobRows] | None,
        repeat: Callable[[], Choices],
    ) -> None:
        """`unsure`: see filter_logits; `logprobs` of the rows that asked; `repeat` chooses once more, surely."""
        flags = [torch.stack(unsure).any()] if unsure else []
        self._arriving = Download([token_ids, *flags])
        self._logprobs = logprobs
        self._repeat = repeat

    def result(self) -> list[Sampled]:
        """One choice per sequence. Waits for the device."""
        token_ids, *flags = self._arriving.wait()
        if flags and bool(flags[0]):
            return self._repeat().result()
        rows, logprobs = self._logprobs or ([], None)
        entries = dict(zip(rows, logprobs.entries(), strict=True)) if logprobs is not None else {}
        return [
            Sampled(token_id=token_id, logprobs=entries.get(row)) for row, token_id in enumerate(token_ids.tolist())
        ]


class Sampler:
    """Holds what it has worked out about live requests until `forget`."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        # A device is not waited for in the middle of a step; on a CPU looking costs nothing and repeating much.
        self._looks = device.type == "cpu"
        self._penalties = PenaltyTable(vocab_size, device)
        self._masks = TokenMasks(vocab_size)
        self._plans: dict[str, SamplingPlan] = {}

    def prepare(self, sequences: Rows[Sequence]) -> None:
        """Begins what can be done before there are logits; for those that `sample` is called with next, or more."""
        self._masks.start(sequences)

    def takes_best(self, sequence: Sequence) -> bool:
        """Whether every next token is the lowest index of the largest logit, and nothing is told about it."""
        plan = self._plan(sequence)
        return plan.greedy and not plan.edits and sequence.request.logprobs is None

    def sample(self, logits: Tensor, sequences: Rows[Sequence]) -> list[Sampled]:
        """logits: [R, V], one row per sequence. Returns one choice per sequence."""
        return self.launch(logits, sequences).result()

    def launch(self, logits: Tensor, sequences: Rows[Sequence], *, surely: bool = False) -> Choices:
        """As `sample`, but does not wait for the device; the logits must stay as they are until the result is there.

        A nucleus wider than expected is found out with the result, which then takes one more round; not with `surely`.
        """
        unsure: list[Tensor] | None = None if surely or self._looks else []
        token_ids = self._choose(logits, sequences, unsure)
        logprobs = None
        asked = [row for row, sequence in enumerate(sequences) if sequence.request.logprobs is not None]
        if asked:
            index = upload(asked, logits.device)
            counts = [sequences[row].request.logprobs or 0 for row in asked]
            logprobs = (asked, LogprobRows.launch(logits[index], token_ids[index], counts))
        return Choices(token_ids, unsure or [], logprobs, lambda: self.launch(logits, sequences, surely=True))

    def forget(self, request_id: str) -> None:
        """The sequence ended. Unknown ids are ignored."""
        self._plans.pop(request_id, None)
        self._penalties.forget(request_id)

    def _choose(self, logits: Tensor, sequences: Rows[Sequence], unsure: list[Tensor] | None) -> Tensor:
        plans = [self._plan(sequence) for sequence in sequences]
        special = [row for row, plan in enumerate(plans) if plan.edits or not plan.greedy]
        if not special:
            return _first_best(logits)
        if len(special) == len(plans):
            return self._choose_special(logits, list(sequences), plans, unsure)
        chosen, index = _first_best(logits), upload(special, logits.device)
        chosen[index] = self._choose_special(
            logits[index], [sequences[row] for row in special], [plans[row] for row in special], unsure
        )
        return chosen

    def _choose_special(
        self, raw: Tensor, sequences: list[Sequence], plans: list[SamplingPlan], unsure: list[Tensor] | None
    ) -> Tensor:
        logits = self._edit(raw, sequences, plans)
        drawn = [row for row, plan in enumerate(plans) if not plan.greedy]
        if len(drawn) == len(plans):
            return self._draw(logits, sequences, plans, unsure)
        chosen = _first_best(logits)
        if drawn:
            index = upload(drawn, logits.device)
            chosen[index] = self._draw(
                logits[index], [sequences[row] for row in drawn], [plans[row] for row in drawn], unsure
            )
        return chosen

    def _draw(
        self, logits: Tensor, sequences: list[Sequence], plans: list[SamplingPlan], unsure: list[Tensor] | None
    ) -> Tensor:
        """Samples softmax(filtered logits / temperature), a few rows at a time."""
        step = max(1, _CPU_CHUNK_ELEMENTS // self._vocab_size) if logits.device.type == "cpu" else len(plans)
        parts = [
            _draw_rows(logits[i : i + step], sequences[i : i + step], plans[i : i + step], unsure)
            for i in range(0, len(plans), step)
        ]
        return torch.cat(parts)

    def _edit(self, raw: Tensor, sequences: list[Sequence], plans: list[SamplingPlan]) -> Tensor:
        """Masks, biases and penalises. Returns [R, V] float32; `raw` is left as it is."""
        logits = raw.float()
        edited = [row for row, plan in enumerate(plans) if plan.edits]
        if not edited:
            return logits
        if logits is raw:
            logits = raw.clone()
        for row in edited:
            self._keep_allowed(logits[row], plans[row])
        self._ban(logits, raw, sequences, plans)
        bias = [(row, i, value) for row in edited for i, value in plans[row].bias]
        if bias:
            rows, ids, values = (upload(column, logits.device) for column in zip(*bias, strict=True))
            logits[rows, ids] += values
        penalised = [row for row in edited if plans[row].penalised]
        if penalised:
            index = upload(penalised, logits.device)
            logits[index] = self._penalties.apply(logits[index], [sequences[row] for row in penalised])
        constrained = [row for row in edited if plans[row].constrained]
        if constrained:
            self._constrain(logits, raw, constrained, sequences, plans)
        return logits

    def _constrain(
        self, logits: Tensor, raw: Tensor, rows: list[int], sequences: list[Sequence], plans: list[SamplingPlan]
    ) -> None:
        """Rules out what leaves the grammar, in place. Where that leaves nothing, only the grammar counts."""
        forbidden = upload(self._masks.take([sequences[row] for row in rows]), logits.device)
        for index, row in enumerate(rows):
            logits[row].masked_fill_(forbidden[index], -torch.inf)
            if plans[row].allowed or plans[row].bad_words:
                _replace_if_empty(logits[row], raw[row].float().masked_fill(forbidden[index], -torch.inf))

    def _ban(self, logits: Tensor, raw: Tensor, sequences: list[Sequence], plans: list[SamplingPlan]) -> None:
        """Rules out bad words and early ends, in place. Where that leaves nothing, it is not done."""
        banned: dict[int, list[int]] = {}
        for row, (sequence, plan) in enumerate(zip(sequences, plans, strict=True)):
            if plan.bad_words or plan.min_tokens:
                ids = plan.banned(sequence.token_ids, sequence.num_output_tokens)
                if ids:
                    banned[row] = ids
        if not banned:
            return
        pairs = [(row, i) for row, ids in banned.items() for i in ids]
        banned_rows, banned_ids = (upload(column, logits.device) for column in zip(*pairs, strict=True))
        logits[banned_rows, banned_ids] = -torch.inf
        for row in banned:
            if plans[row].allowed:
                unbanned = raw[row].float().clone()
                self._keep_allowed(unbanned, plans[row])
                _replace_if_empty(logits[row], unbanned)

    def _keep_allowed(self, row: Tensor, plan: SamplingPlan) -> None:
        """row: [V], changed in place."""
        if plan.allowed:
            ids = upload(plan.allowed, row.device)
            kept = row[ids]
            row.fill_(-torch.inf)
            row[ids] = kept

    def _plan(self, sequence: Sequence) -> SamplingPlan:
        request = sequence.request
        plan = self._plans.get(request.request_id)
        if plan is None:
            plan = SamplingPlan.of(request, self._vocab_size, self._eos_token_ids)
            self._plans[request.request_id] = plan
        return plan


def _replace_if_empty(row: Tensor, other: Tensor) -> None:
    """row, other: [V]. Where `row` lets no token be chosen it becomes `other`, in place; decided on the device."""
    row.copy_(torch.where(torch.isneginf(row.max()), other, row))


def _draw_rows(
    logits: Tensor, sequences: list[Sequence], plans: list[SamplingPlan], unsure: list[Tensor] | None
) -> Tensor:
    """The arg max of logits and Gumbel noise is a sample of the softmax."""
    logits = logits / upload([plan.temperature for plan in plans], logits.device)[:, None]
    logits = filter_logits(
        logits,
        [plan.top_k for plan in plans],
        [plan.top_p for plan in plans],
        [plan.min_p for plan in plans],
        unsure,
    )
    keys = [noise_key(plan.seed, sequence.num_tokens) for plan, sequence in zip(plans, sequences, strict=True)]
    return _first_best(logits + gumbel_noise(keys, logits.shape[1], logits.device))


def _first_best(logits: Tensor) -> Tensor:
    """[R] the lowest index of each row's maximum. On a CPU `max` is several times faster than `argmax`."""
    return logits.max(dim=-1).indices

"""One step's batch as tensors: what the model computes, where it is stored, which rows are sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.backend import AttentionBatch
from engine.batch import Batch, Scheduled
from engine.transfer import upload


@dataclass(frozen=True, slots=True)
class BatchTensors:
    """Sequences with one new token first, then the others; `order` says who is who.

    T: tokens of the step, B: sequences.
    """

    order: tuple[int, ...]  # [B] index into batch.scheduled of each sequence
    first_rows: tuple[int, ...]  # [B] row of each sequence's first new token
    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionBatch

    @classmethod
    def build(cls, batch: Batch, block_size: int, device: torch.device) -> BatchTensors:
        scheduled = batch.scheduled
        order = sorted(range(len(scheduled)), key=lambda index: scheduled[index].num_new_tokens > 1)
        ordered = [scheduled[index] for index in order]
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        first_rows: list[int] = []
        for item in ordered:
            sequence, begin = item.sequence, item.sequence.num_computed
            end = begin + item.num_new_tokens
            first_rows.append(len(token_ids))
            token_ids += sequence.token_ids[begin:end]
            positions += range(begin, end)
            blocks = sequence.block_table.block_ids
            slots += [
                blocks[position // block_size] * block_size + position % block_size for position in range(begin, end)
            ]
        return cls(
            order=tuple(order),
            first_rows=tuple(first_rows),
            token_ids=upload(token_ids, device),
            positions=upload(positions, device),
            attention=AttentionBatch(
                num_decodes=sum(item.num_new_tokens == 1 for item in ordered),
                query_lens=tuple(item.num_new_tokens for item in ordered),
                context_lens=tuple(item.sequence.num_computed + item.num_new_tokens for item in ordered),
                slots=upload(slots, device),
                block_tables=upload(_block_tables(ordered, block_size), device),
            ),
        )


def _block_tables(ordered: list[Scheduled], block_size: int) -> list[list[int]]:
    """[B, M], padded with block 0, which the masks hide."""
    tables = []
    for item in ordered:
        context_len = item.sequence.num_computed + item.num_new_tokens
        tables.append(item.sequence.block_table.block_ids[: -(-context_len // block_size)])
    width = max(len(table) for table in tables)
    return [table + [0] * (width - len(table)) for table in tables]

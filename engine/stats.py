"""Numbers of the engine: of one step, and of this moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LockstepTotals:
    """What stepping together has cost a rank since start."""

    steps: int = 0  # of the group, this rank's own work or not
    dummy_steps: int = 0  # of these, those without a token of this rank
    bytes_sent: int = 0  # to other ranks: tokens' rows and their counts


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """How busy the engine is. Totals count since start and never go down."""

    waiting: int  # requests that hold no KV blocks
    running: int  # requests that hold KV blocks
    kv_usage: float  # share of the blocks that running requests hold, 0 to 1
    waiting_tokens: int  # known tokens of waiting requests, none of them computed
    prompt_tokens_total: int  # computed or found in the prefix cache, each request's once
    generated_tokens_total: int
    prefix_cache_queries_total: int  # prompt tokens looked up
    prefix_cache_hits_total: int  # prompt tokens found
    preemptions_total: int
    steps_total: int  # forward passes
    free_blocks: int  # blocks no request holds, cached ones included
    total_blocks: int
    lockstep: LockstepTotals | None = None  # None: this rank steps alone


@dataclass(frozen=True, slots=True)
class StepStats:
    """One turn of the engine; all but `step` and `load` are zero when nothing was computed."""

    step: int  # number of the last forward pass
    num_sequences: int
    num_tokens: int
    schedule_us: int
    execute_us: int
    duration_us: int
    load: LoadSnapshot

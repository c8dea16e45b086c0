"""The life of one request inside the engine: what is known of it, how much of that is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.kv.block_table import BlockTable
from engine.request import FinishReason, PoolingMethod, PromptInfo, Request, TokenLogprobs, Usage

if TYPE_CHECKING:
    from engine.grammar.matcher import Matcher


class Sequence:
    """Mutable, touched by the engine thread only.

    Invariant: num_computed <= num_tokens <= max_total_tokens, and the block table covers the computed tokens.
    A running sequence catches up num_computed to num_tokens; prompt chunks, single tokens, prefix
    cache hits and recomputation after a preemption are all that one rule.
    """

    __slots__ = (
        "_prompt_logprobs",
        "arrival",
        "block_table",
        "matcher",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_prompt_tokens",
        "num_prompt_tokens_counted",
        "order",
        "prompt_reported",
        "request",
        "request_id",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request: Request,
        *,
        arrival: int,
        max_total_tokens: int,
        eos_token_ids: tuple[int, ...] = (),
        matcher: Matcher | None = None,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival  # number of the request since start
        self.order = (request.priority, arrival)  # who goes first; the same in every queue
        self.token_ids: list[int] = [*request.prompt_token_ids, *request.generated_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_total_tokens = max_total_tokens  # prompt plus output, bounded by the context
        eos = () if request.stop.ignore_eos else eos_token_ids
        self.stop_token_ids: frozenset[int] = request.stop.stop_token_ids.union(eos)
        self.block_table = BlockTable(request.cache_salt)
        self.num_computed = 0  # leading tokens whose keys and values lie in the blocks
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache on first admission
        self.num_preemptions = 0
        self.num_prompt_tokens_counted = 0  # prompt tokens in the totals already; recomputation counts once
        self.prompt_reported = False
        self.matcher = matcher  # of request.constraint; follows the output when the next token is sampled
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens, those of `request.generated_token_ids` included."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logprobs of the prompt are still to be reported; all of it must be computed then."""
        return self.request.prompt_logprobs is not None and not self.prompt_reported

    @property
    def needs_every_row(self) -> bool:
        """Whether the hidden states of all prompt tokens are used, so that none may come from the prefix cache."""
        pooling = self.request.pooling
        return self.wants_prompt_logprobs or (pooling is not None and pooling.method is PoolingMethod.MEAN)

    @property
    def stop_token_id(self) -> int | None:
        """The last token if it ends the generation."""
        last = self.token_ids[-1]
        if last in self.stop_token_ids and self.num_output_tokens > self.request.stop.min_tokens:
            return last
        return None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why nothing may be generated any more, None when something may. Stop wins over length."""
        if self.token_ids[-1] in self.stop_token_ids and self.stop_token_id is not None:
            return FinishReason.STOP
        if len(self.token_ids) >= self.max_total_tokens:
            return FinishReason.LENGTH
        return None

    @property
    def usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self.num_output_tokens, self.num_cached_tokens)

    def add_prompt_logprobs(self, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Takes the logprobs of the next prompt positions; ignored once the prompt was reported."""
        if not self.wants_prompt_logprobs:
            return
        if not self._prompt_logprobs:
            first = TokenLogprobs(token_id=self.token_ids[0], logprob=None, rank=0)
            self._prompt_logprobs.append(first)
        self._prompt_logprobs.extend(logprobs)

    def report_prompt(self) -> PromptInfo | None:
        """What became of the prompt, the first time it is asked for; None afterwards."""
        if self.prompt_reported:
            return None
        self.add_prompt_logprobs(())
        self.prompt_reported = True
        info = PromptInfo(self.num_prompt_tokens, self.num_cached_tokens, tuple(self._prompt_logprobs))
        self._prompt_logprobs = []
        return info

    def restart(self) -> None:
        """Forgets the computed state, not the tokens, after the blocks were taken away."""
        assert not self.block_table.block_ids, "blocks are released before a sequence restarts"
        self.num_computed = 0
        self.num_preemptions += 1
        self._prompt_logprobs = []

"""The one builder of usage objects, for every endpoint, streamed or not."""

from __future__ import annotations

from gateway.generation_request import ChoiceDelta, GenerationEvent, GenerationUsage, PromptReport
from gateway.openai.bodies import Usage


class UsageCount:
    """Adds up what the events of a request tell; of several prompts together when there are several."""

    def __init__(self) -> None:
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached_tokens = 0
        self._reasoning_tokens = 0
        self._final = GenerationUsage(0, 0, 0)

    def add(self, event: GenerationEvent) -> None:
        if isinstance(event, ChoiceDelta):
            self._completion_tokens += len(event.token_ids)
            self._reasoning_tokens += event.num_reasoning_tokens
        elif isinstance(event, PromptReport):
            self._prompt_tokens += event.num_tokens
            self._cached_tokens += event.cached_tokens
        else:
            self._final = GenerationUsage(
                self._final.prompt_tokens + event.prompt_tokens,
                self._final.completion_tokens + event.completion_tokens,
                self._final.cached_tokens + event.cached_tokens,
                self._final.reasoning_tokens + event.reasoning_tokens,
            )

    def so_far(self) -> Usage:
        """Cumulative usage while streaming."""
        return usage_body(
            GenerationUsage(self._prompt_tokens, self._completion_tokens, self._cached_tokens, self._reasoning_tokens)
        )

    def final(self) -> Usage:
        """Usage after all prompts have ended."""
        return usage_body(self._final)


def usage_body(usage: GenerationUsage) -> Usage:
    """Every number is an integer; unknown ones are 0, because dashboards read null as a broken cache."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }

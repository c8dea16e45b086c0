"""Tells what an answer consists of while it grows: text, and tool calls where there are tools. Pure."""

from __future__ import annotations

from gateway.generation_request import ChoiceDelta
from gateway.openai.tool_answer import ToolAnswer
from gateway.tool_calls import Content, ToolEvent


class AnswerReader:
    """One choice's parts in order; without `tools` all of it is text."""

    def __init__(self, tools: ToolAnswer | None) -> None:
        self._parser = None if tools is None else tools.parser()

    @property
    def num_calls(self) -> int:
        """Calls that are complete."""
        return 0 if self._parser is None else self._parser.num_calls

    def push(self, delta: ChoiceDelta) -> list[ToolEvent]:
        """What can be told now; with the last delta, the rest."""
        if self._parser is None:
            return [Content(delta.text)] if delta.text else []
        told = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            told += self._parser.finish()
        return told

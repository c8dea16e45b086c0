"""One choice of a chat answer that may hold tool calls, in the words of the API. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from gateway.generation_request import Constraint, FinishReason
from gateway.openai.envelope import finish_reason_text
from gateway.tool_calls import CallArguments, CallStart, Content, ToolCallParser, ToolEvent
from gateway.tool_use import PLAIN, ToolFormat, ToolUse, forced_calls, format_of

Delta = dict[str, object]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """How the answers of one request are read: which tools, written in which way."""

    use: ToolUse
    form: ToolFormat

    @classmethod
    def of(cls, use: ToolUse | None, template: str, parser: str = "auto") -> ToolAnswer | None:
        """None where answers are text: there are no tools, or a template that ignores them and no call is forced."""
        form = format_of(template, parser)
        if use is None or (form is None and not use.forced):
            return None
        if form is None or (use.forced and form.opens_all):
            return cls(use, PLAIN)
        return cls(use, form)

    def forced_calls(self) -> Constraint:
        """What answers must be that are calls and nothing else."""
        return forced_calls(self.use, self.form)

    def parser(self) -> ToolCallParser:
        return ToolCallParser(self.form, self.use.names, parallel=self.use.parallel)

    def message(self, text: str, finish_reason: FinishReason) -> tuple[Delta, str]:
        """The message of a whole answer, and why it ended."""
        parser = self.parser()
        content, calls = "", list[Delta]()
        for event in [*parser.push(text), *parser.finish()]:
            match event:
                case Content(part):
                    content += part
                case CallStart(_, name):
                    calls.append(_call(name))
                case CallArguments(index, part):
                    function = calls[index]["function"]
                    assert isinstance(function, dict)
                    function["arguments"] += part
        message: Delta = {"role": "assistant", "content": content or None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        else:
            message["content"] = content
        return message, finish_text(finish_reason, len(calls))


def finish_text(reason: FinishReason, num_calls: int) -> str:
    """An answer that was cut within a call ends with "length"."""
    return "tool_calls" if num_calls and reason is FinishReason.STOP else finish_reason_text(reason)


def delta_of(event: ToolEvent) -> Delta:
    """A chunk's delta: id, type and name once per call, its arguments after that, told apart by index."""
    match event:
        case Content(text):
            return {"content": text}
        case CallStart(index, name):
            return {"tool_calls": [{"index": index, **_call(name)}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _call(name: str) -> Delta:
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": {"name": name, "arguments": ""}}

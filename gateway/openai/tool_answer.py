"""One choice of a chat answer that may hold tool calls, in the words of the API. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from gateway.generation_request import Constraint, FinishReason
from gateway.openai.bodies import ChatDelta, ChatMessage, Finish, ToolCall, ToolCallDelta
from gateway.openai.envelope import finish_reason_text
from gateway.tool_calls import CallArguments, CallStart, Content, ToolCallParser, ToolEvent
from gateway.tool_use import PLAIN, ToolFormat, ToolUse, forced_calls, format_of


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

    def message(self, text: str, finish_reason: FinishReason) -> tuple[ChatMessage, Finish]:
        """The message of a whole answer, and why it ended."""
        parser = self.parser()
        content, calls = "", list[ToolCall]()
        for event in [*parser.push(text), *parser.finish()]:
            match event:
                case Content(part):
                    content += part
                case CallStart(_, name):
                    calls.append(_call(name))
                case CallArguments(index, part):
                    calls[index]["function"]["arguments"] += part
        message: ChatMessage = {"role": "assistant", "content": content or None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        else:
            message["content"] = content
        return message, finish_text(finish_reason, len(calls))


def finish_text(reason: FinishReason, num_calls: int) -> Finish:
    """An answer that was cut within a call ends with "length"."""
    return "tool_calls" if num_calls and reason is FinishReason.STOP else finish_reason_text(reason)


def delta_of(event: ToolEvent) -> ChatDelta:
    """A chunk's delta: id, type and name once per call, its arguments after that, told apart by index."""
    match event:
        case Content(text):
            return {"content": text}
        case CallStart(index, name):
            call: ToolCallDelta = {
                "index": index,
                "id": _call_id(),
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _call(name: str) -> ToolCall:
    return {"id": _call_id(), "type": "function", "function": {"name": name, "arguments": ""}}


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"

"""Tells tool calls from text while an answer grows; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gateway.json_span import JsonSpan
from gateway.tool_use import ToolFormat

# The usual order of keys; arguments can then be passed on as they come.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# Mistral's newer way: a name, perhaps an id, perhaps a mark, then the arguments.
_NAMED_HEAD = re.compile(r"\s*([^\s{\[]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\]\s*)?(?=\{)")
_MAX_HEAD_CHARS = 4096
_SEPARATORS = " \t\r\n;,[]"


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is none of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, JSON as the model writes it."""

    index: int
    text: str


ToolEvent = Content | CallStart | CallArguments


class _Mode(Enum):
    SEEK = "seek"  # text, until a call begins
    CALL = "call"  # the beginning of a call's object
    ARGUMENTS = "arguments"  # passed on as they come
    TAIL = "tail"  # what closes a call


class ToolCallParser:
    """`push` and `finish` give the events of an answer in order; what may become a call is held back until it is clear.

    Objects that do not name one of `names` are text. Without `parallel` only the first call is told of.
    """

    def __init__(self, form: ToolFormat, names: frozenset[str], *, parallel: bool = True) -> None:
        self._opening = form.opening.strip()
        self._closing = form.closing.strip()
        self._opens_all = form.opens_all
        self._opened = False
        self._names = names
        self._parallel = parallel
        self.num_calls = 0
        self._mode = _Mode.SEEK
        self._held = ""  # read, and not known yet to be text or a call
        self._span = JsonSpan()  # of the arguments
        self._object = JsonSpan()  # of a call whose keys come in another order
        self._num_scanned = 0
        self._after: tuple[str, ...] = ()  # what closes the call whose arguments are passed on
        self._tail: tuple[str, ...] = ()
        self._said_text = False

    def push(self, text: str) -> list[ToolEvent]:
        self._held += text
        return self._told(last=False)

    def finish(self) -> list[ToolEvent]:
        """The rest: a call that was cut before it could be told is text."""
        return self._told(last=True)

    def _told(self, *, last: bool) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        for event in self._events(last):
            if isinstance(event, Content):
                self._said_text = True
            elif event.index and not self._parallel:
                continue
            before = events[-1] if events else None
            if isinstance(event, CallArguments) and isinstance(before, CallArguments) and before.index == event.index:
                events[-1] = CallArguments(event.index, before.text + event.text)
            elif isinstance(event, Content) and isinstance(before, Content):
                events[-1] = Content(before.text + event.text)
            else:
                events.append(event)
        return events

    def _events(self, last: bool) -> Iterator[ToolEvent]:
        steps = {
            _Mode.SEEK: self._seek,
            _Mode.CALL: self._read_call,
            _Mode.ARGUMENTS: self._pass_arguments,
            _Mode.TAIL: self._skip_tail,
        }
        while True:
            before = (self._mode, len(self._held))
            yield from steps[self._mode](last)
            if (self._mode, len(self._held)) == before:
                return

    def _seek(self, last: bool) -> Iterator[ToolEvent]:
        if self._opened:
            return self._seek_next(last)
        return self._seek_opening(last) if self._opening else self._seek_object(last)

    def _seek_opening(self, last: bool) -> Iterator[ToolEvent]:
        text, opening, rest = self._held.partition(self._opening)
        if opening:
            self._mode, self._held = _Mode.CALL, rest
            self._opened = self._opens_all
            text = text.rstrip()
        else:
            # White space before an opening is no part of the text either.
            keep = 0 if last else _num_undecided(text, self._opening)
            text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        if text and not (self.num_calls and text.isspace()):
            yield Content(text)

    def _seek_next(self, last: bool) -> Iterator[ToolEvent]:
        """After the opening that stands for all calls: the next one of a list, or another opening."""
        stripped = self._held.lstrip(_SEPARATORS.replace("[", ""))
        if stripped.startswith(("{", self._opening)):
            self._mode, self._held = _Mode.CALL, stripped.removeprefix(self._opening)
        elif last or not self._opening.startswith(stripped):
            text, self._held = self._held, ""
            if stripped:
                yield Content(text)

    def _seek_object(self, last: bool) -> Iterator[ToolEvent]:
        """Calls begin the answer or follow another one, in brackets or not."""
        stripped = self._held.lstrip(_SEPARATORS)
        if not self._said_text and stripped.startswith("{"):
            self._mode, self._held = _Mode.CALL, stripped
        elif self._said_text or stripped or last:
            text, self._held = self._held, ""
            if text and not (self.num_calls and not stripped):
                yield Content(text)

    def _read_call(self, last: bool) -> Iterator[ToolEvent]:
        """From a call's object to its arguments, or all of it when the keys come in another order."""
        if self._opens_all:
            self._held = self._held.lstrip(" \t\r\n[")
            if self._held and not self._held.startswith("{"):
                yield from self._read_named(last)
                return
        head = _HEAD.match(self._held) if len(self._held) < _MAX_HEAD_CHARS else None
        if head is not None and (name := _string(head[1])) in self._names:
            self._begin_arguments(head.end(), "}", self._closing)
            yield CallStart(self.num_calls, name)
            return
        length = self._object_length()
        if length is None and not last:
            return
        raw = self._held if length is None else self._held[:length]
        self._held = self._held[len(raw) :]
        call = _call_in(raw)
        if call is not None and call[0] in self._names:
            yield CallStart(self.num_calls, call[0])
            yield CallArguments(self.num_calls, call[1])
            self._end_call(self._closing)
        else:
            self._mode = _Mode.SEEK
            yield Content(self._opening + raw)

    def _read_named(self, last: bool) -> Iterator[ToolEvent]:
        """A call without an object around it: the name, then the arguments."""
        head = _NAMED_HEAD.match(self._held)
        if head is not None and head[1] in self._names:
            self._begin_arguments(head.end())
            yield CallStart(self.num_calls, head[1])
        elif last or "{" in self._held or len(self._held) > _MAX_HEAD_CHARS:
            text, self._held = self._opening + self._held, ""
            self._mode, self._opened = _Mode.SEEK, False
            yield Content(text)

    def _begin_arguments(self, start: int, *tail: str) -> None:
        self._mode, self._held = _Mode.ARGUMENTS, self._held[start:]
        self._span, self._num_scanned, self._after = JsonSpan(), 0, tail

    def _object_length(self) -> int | None:
        """Of the call's object, once it is complete; of what cannot be one, as soon as that is clear."""
        if not self._held.lstrip().startswith("{"):
            return len(self._held) if self._held.strip() else None
        if not self._num_scanned:
            self._object = JsonSpan()
        length = self._object.take(self._held[self._num_scanned :])
        found = None if length is None else self._num_scanned + length
        self._num_scanned = len(self._held) if found is None else 0
        return found

    def _pass_arguments(self, last: bool) -> Iterator[ToolEvent]:
        length = self._span.take(self._held)
        part = self._held if length is None else self._held[:length]
        self._held = self._held[len(part) :]
        if part:
            yield CallArguments(self.num_calls, part)
        if length is not None:
            self._end_call(*self._after)

    def _end_call(self, *tail: str) -> None:
        self.num_calls += 1
        self._mode, self._tail = _Mode.TAIL, tuple(filter(None, tail))

    def _skip_tail(self, last: bool) -> Iterator[ToolEvent]:
        """What should stand here is skipped; from the first thing that should not, it is text."""
        while self._tail:
            self._held = self._held.lstrip()
            if self._held.startswith(self._tail[0]):
                self._held = self._held[len(self._tail[0]) :]
                self._tail = self._tail[1:]
            elif not self._tail[0].startswith(self._held):
                break
            elif last:  # cut short
                self._held, self._tail = "", ()
            else:
                return
        self._mode = _Mode.SEEK
        yield from ()


def _num_undecided(text: str, opening: str) -> int:
    """Characters at the end that are white space or the beginning of an opening, or both."""
    begun = next((length for length in range(len(opening) - 1, 0, -1) if text.endswith(opening[:length])), 0)
    return len(text) - len(text[: len(text) - begun].rstrip())


def _string(literal: str) -> str:
    try:
        value = json.loads(literal)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def _call_in(text: str) -> tuple[str, str] | None:
    """Name and arguments of a whole object; arguments may also be a string that holds the JSON."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        return call["name"], arguments
    return call["name"], json.dumps({} if arguments is None else arguments, ensure_ascii=False)

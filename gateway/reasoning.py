"""What a model thinks before it answers, told from the answer; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

PARSERS = ("auto", "none", "qwen3", "deepseek_r1", "mistral")


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Thoughts stand between `opening` and `closing`, before the answer.

    `begins_open`: the answer begins within them, because the prompt ends with the opening or the family omits it.
    """

    opening: str
    closing: str
    begins_open: bool = False


THINK_TAGS = ReasoningFormat("<think>", "</think>")
MISTRAL = ReasoningFormat("[THINK]", "[/THINK]")
_DEEPSEEK_R1 = replace(THINK_TAGS, begins_open=True)
_BY_NAME = {"qwen3": THINK_TAGS, "deepseek_r1": _DEEPSEEK_R1, "mistral": MISTRAL}


def format_of(parser: str, template: str) -> ReasoningFormat | None:
    """`parser` is one of PARSERS; "auto" goes by what the chat template knows of. None: there are no thoughts."""
    if parser != "auto":
        return _BY_NAME.get(parser)
    return next((form for form in (THINK_TAGS, MISTRAL) if form.closing in template), None)


def after_prompt(form: ReasoningFormat, prompt_end: str) -> ReasoningFormat:
    """The format of the answer to a prompt: templates end it with an opening to make a model think, or a closing."""
    end = prompt_end.rstrip()
    opened, closed = end.endswith(form.opening), end.endswith(form.closing)
    return replace(form, begins_open=opened or (form.begins_open and not closed))


def continuing(form: ReasoningFormat, begun: str) -> ReasoningFormat:
    """The format of the rest of an answer that begins with `begun`."""
    opened, closed = begun.rfind(form.opening), begun.rfind(form.closing)
    return replace(form, begins_open=opened > closed or (form.begins_open and closed < 0))


class ReasoningSplitter:
    """Splits the text of one choice into thoughts and answer, however it is cut into pieces.

    White space around either is dropped where a tag separates them. Held back is only what may still be a tag.
    """

    def __init__(self, form: ReasoningFormat) -> None:
        self._form = form
        self._held = ""
        self._seeking = not form.begins_open  # whether thoughts begin at all
        self.thinking = form.begins_open
        self._begun = False  # the part that is being read has a character

    def push(self, text: str) -> tuple[str, str]:
        """(thoughts, answer) that are certain now."""
        self._held += text
        if self._seeking and not self._found_opening():
            return "", ""
        thoughts = self._take_thoughts() if self.thinking else ""
        return thoughts, "" if self.thinking else self._released(self._held, 0)

    def flush(self) -> tuple[str, str]:
        """Ends the text: what was held back is no tag."""
        held, self._held = self._held if self._begun or self._seeking else "", ""
        return (held, "") if self.thinking else ("", held)

    def _found_opening(self) -> bool:
        """Whether it is clear how the answer begins."""
        start = self._held.lstrip()
        if not start or (len(start) < len(self._form.opening) and self._form.opening.startswith(start)):
            return False
        self._seeking = False
        if start.startswith(self._form.opening):
            self.thinking, self._held = True, start.removeprefix(self._form.opening)
        else:
            self._begun = True  # white space belongs to an answer without thoughts
        return True

    def _take_thoughts(self) -> str:
        thoughts, closing, rest = self._held.partition(self._form.closing)
        if closing:
            self.thinking, self._held = False, rest
            begun, self._begun = self._begun, False
            return thoughts.rstrip() if begun else thoughts.strip()
        keep = len(thoughts) - len(thoughts[: len(thoughts) - _num_begun(thoughts, self._form.closing)].rstrip())
        return self._released(thoughts, keep)

    def _released(self, text: str, keep: int) -> str:
        released, self._held = text[: len(text) - keep], text[len(text) - keep :]
        if not self._begun:
            released = released.lstrip()
            self._begun = bool(released)
        return released


def _num_begun(text: str, tag: str) -> int:
    """Characters at the end of `text` that may become the tag."""
    return next((length for length in range(len(tag) - 1, 0, -1) if text.endswith(tag[:length])), 0)

"""`muster chat`: a conversation in the terminal, or one answer for a prompt or piped input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from services.cli import flag_table
from services.cli.chat_client import ChatClient, ChatError
from services.cli.flag import read_flags

_HELP = """  /reset          forget the conversation
  /system TEXT    set the system prompt and start anew
  /quit           leave (Ctrl-D does too)
Ctrl-C stops an answer. End a line with \\ to go on in the next one."""


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    values = read_flags(flag_table.CHAT, namespace, environment)
    prompt = " ".join(namespace.prompt).strip()
    try:
        with ChatClient(
            values["url"],
            api_key=values["api_key"],
            model=values["model"],
            temperature=values["temperature"],
            max_tokens=values["max_tokens"],
        ) as client:
            conversation = Conversation(client, values["system"], write=_write)
            if not prompt and not sys.stdin.isatty():
                prompt = sys.stdin.read().strip()
                if not prompt:
                    print(
                        "muster chat: standard input is empty; pipe a question or run it in a terminal", file=sys.stderr
                    )
                    return 2
            if prompt:
                conversation.ask(prompt)
                return 0
            return _converse(conversation)
    except ChatError as error:
        print(f"muster chat: {error}", file=sys.stderr)
        return 1


class Conversation:
    """The messages so far. An answer that fails or is stopped before its first word leaves no trace in them."""

    def __init__(self, client: ChatClient, system: str | None, *, write: Callable[[str], None]) -> None:
        self._client = client
        self._write = write
        self.messages: list[dict[str, str]] = []
        self.reset(system)

    def reset(self, system: str | None = None) -> None:
        """Forgets the turns; keeps the system prompt unless a new one is given."""
        kept = [message for message in self.messages if message["role"] == "system"]
        self.messages = [{"role": "system", "content": system}] if system else kept

    def ask(self, text: str) -> None:
        """Streams the answer to `write`. Raises ChatError; KeyboardInterrupt ends the answer."""
        question = {"role": "user", "content": text}
        answer = ""
        try:
            for delta in self._client.stream([*self.messages, question]):
                answer += delta
                self._write(delta)
        finally:
            if answer:
                self._write("\n")
                self.messages += [question, {"role": "assistant", "content": answer}]


def _converse(conversation: Conversation) -> int:
    print("Talking to the model; /help lists commands.")
    _enable_line_editing()
    while True:
        try:
            line = _read_message()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /quit leaves)")
            continue
        if line.startswith("/"):
            if not _obey(conversation, line):
                return 0
        elif line:
            _answer(conversation, line)


def _answer(conversation: Conversation, line: str) -> None:
    try:
        conversation.ask(line)
    except KeyboardInterrupt:
        print("(stopped)")
    except ChatError as error:
        print(f"error: {error}", file=sys.stderr)


def _obey(conversation: Conversation, line: str) -> bool:
    """Runs a /command; False to leave."""
    command, _, argument = line.partition(" ")
    if command in {"/quit", "/exit", "/bye"}:
        return False
    if command == "/reset":
        conversation.reset()
        print("(forgotten)")
    elif command == "/system" and argument.strip():
        conversation.reset(argument.strip())
        print("(system prompt set)")
    else:
        print(_HELP)
    return True


def _read_message() -> str:
    lines = [input(">>> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("... "))
    return "\n".join(lines).strip()


def _enable_line_editing() -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  (history and arrow keys for input())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

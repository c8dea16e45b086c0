"""`muster top`: the deployment live, redrawn in place; without a terminal, once."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping

import grpc
from muster import v1 as wire

from services.cli import flag_table
from services.cli.flag import read_flags
from services.cli.head_target import head_target_of
from services.cli.security_flags import dialer_of
from services.cli.status_command import duration, no_answer, reason
from services.cli.top_screen import Sample, screen_lines

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_LEAVING_KEYS = (b"q", b"Q", b"\x03", b"\x04")


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 0 after q or Ctrl-C, 1 when no head answers at first."""
    values = read_flags(flag_table.TOP, namespace, environment)
    target = head_target_of(values)
    dialer = dialer_of(values)
    with dialer.dial_blocking(target) as channel:
        top = Top(wire.RendezvousServiceStub(channel), target, values["interval"], values["timeout"])
        try:
            top.ask()
        except grpc.RpcError as error:
            print(no_answer("top", target, error, dialer), file=sys.stderr)
            return 1
        if sys.stdin.isatty() and sys.stdout.isatty():
            top.live(colour="NO_COLOR" not in environment)
        else:
            top.once()
    return 0


class Top:
    """Asks the head at an interval and keeps its last two answers, between which the rates lie."""

    def __init__(self, stub: wire.RendezvousServiceStub, target: str, interval_s: float, timeout_s: float) -> None:
        self._stub = stub
        self._target = target
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._before: Sample | None = None
        self._now: Sample | None = None

    def ask(self) -> None:
        """Raises grpc.RpcError."""
        answer = self._stub.GetDeployment(wire.GetDeploymentRequest(), timeout=self._timeout_s)
        self._before, self._now = self._now, Sample(answer, time.time())

    def once(self) -> None:
        """Rates need a second answer; when none comes, the first is shown without."""
        time.sleep(self._interval_s)
        with contextlib.suppress(grpc.RpcError):
            self.ask()
        assert self._now is not None
        print("\n".join(screen_lines(self._before, self._now, width=200)))

    def live(self, *, colour: bool) -> None:
        """Redraws until q or Ctrl-C; a head that is away is told and awaited."""
        trouble = ""
        with _own_screen():
            while True:
                self._draw(trouble, colour=colour)
                if _leaves_within(self._interval_s):
                    return
                try:
                    self.ask()
                    trouble = ""
                except grpc.RpcError as error:
                    assert self._now is not None
                    silent = duration(time.time() - self._now.at_s)
                    trouble = f"no answer from the head at {self._target} for {silent} ({reason(error)})"

    def _draw(self, trouble: str, *, colour: bool) -> None:
        assert self._now is not None
        size = os.get_terminal_size(sys.stdout.fileno())
        lines = screen_lines(self._before, self._now, width=size.columns, height=size.lines - 1, colour=colour)
        lines += ["", trouble[: size.columns] or "q leaves"]
        body = "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines[: size.lines - 1])
        sys.stdout.write(f"{_HOME}{body}{_CLEAR_BELOW}")
        sys.stdout.flush()


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    """The alternate screen with single keys, and the old one afterwards, however it ends."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _leaves_within(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    if not readable:
        return False
    keys = os.read(sys.stdin.fileno(), 64)
    return not keys or any(key in keys for key in _LEAVING_KEYS)

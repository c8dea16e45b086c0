"""A rank's part in forming its group: what the head asks for, done beside the engine thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from engine.core import EngineCore
from engine.errors import EngineError, GroupBrokenError
from engine.loop import EngineLoop
from engine.parallel.lockstep import Lockstep
from engine.parallel.placement import ExpertPlacement
from engine.parallel.process_group import GroupListener, form_group
from engine.parallel.spreading import SpreadExperts
from engine.waves import Frames

_log = logging.getLogger(__name__)

# Members are asked at about the same time, and all of them have loaded their model by then, but some may have to load
# more experts first.
_FORM_TIMEOUT_S = 120.0
# What cannot be loaded now may find room later, but the head asks again at once.
_PLACING_PAUSE_S = 5.0


class GroupMember:
    """Passes the head's words on to the engine thread, and forms groups on threads of its own.

    All methods may be called from any thread and return at once.
    """

    def __init__(
        self,
        loop: EngineLoop,
        lockstep: Lockstep,
        spread: SpreadExperts,
        *,
        rank: int,
        host: str,
        on_listening: Callable[[int, str], None],
    ) -> None:
        """`host` is where the other members reach this one. `on_listening` is called with an epoch and the address
        where the first member awaits the others, on any thread."""
        self._loop = loop
        self._lockstep = lockstep
        self._spread = spread
        self._rank = rank
        self._host = host
        self._on_listening = on_listening
        self._placing = threading.Lock()  # a thread of an older epoch may still be at it

    def connected(self) -> Frames:
        """A stream to the head was opened. Returns its first frame, if the rank steps: the engine thread may be waiting
        in an exchange. Else the engine thread says it."""
        if not (frames := self._lockstep.standing()):
            self._ask(self._lockstep.connected)
        return frames

    def form(self, epoch: int, members: Sequence[int], target: str) -> None:
        """The head asks to form a group; `target` is where its first member listens, empty for that member."""
        self._ask(lambda core: self._begin(epoch, tuple(members), target))

    def start(self, epoch: int, wave: int) -> None:
        """The head starts a wave."""
        self._ask(lambda core: self._lockstep.start(epoch, wave))

    def pause(self, epoch: int, wave: int) -> None:
        """The head wants a wave to stop."""
        self._ask(lambda core: self._lockstep.pause(epoch, wave))

    def disband(self, epoch: int, reason: str) -> None:
        """The head ends a group."""
        _log.info("the group of epoch %d ends: %s", epoch, reason)
        self._lockstep.interrupt(epoch, reason)  # the engine thread may be waiting in it
        self._ask(lambda core: self._lockstep.disband(core, epoch))

    def _ask(self, function: Callable[[EngineCore], object]) -> None:
        """Of the engine thread. Nobody waits for it, so that what goes wrong is said here."""
        self._loop.call(function).add_done_callback(_say_failure)

    def _begin(self, epoch: int, members: tuple[int, ...], target: str) -> None:
        if not self._lockstep.form(epoch, is_first=not target):
            return
        threading.Thread(
            target=self._form, args=(epoch, members, target), name=f"group of epoch {epoch}", daemon=True
        ).start()

    def _form(self, epoch: int, members: tuple[int, ...], target: str) -> None:
        listener = None
        try:
            self._place(members)
            address = _numeric(self._host)
            if not target:
                listener = GroupListener(address)
                target = listener.target
                self._on_listening(epoch, target)
            group = form_group(
                target=target,
                listener=listener,
                address=address,
                epoch=epoch,
                index=members.index(self._rank),
                size=len(members),
                fingerprint=self._spread.fingerprint,
                device=self._spread.device,
                timeout_s=_FORM_TIMEOUT_S,
                on_wait=self._loop.alive,
            )
        except Exception as error:  # also no memory for more experts
            if isinstance(error, GroupBrokenError | OSError | ValueError):
                _log.warning("the group of epoch %d was not formed: %s", epoch, error)
            else:
                _log.exception("the group of epoch %d was not formed", epoch)
                time.sleep(_PLACING_PAUSE_S)  # nobody is kept by it: this thread is for one epoch
            self._ask(lambda core: self._lockstep.failed(core, epoch))
        else:
            self._ask(lambda core: self._lockstep.formed(core, group))
        finally:
            if listener is not None:
                listener.close()

    def _place(self, members: tuple[int, ...]) -> None:
        """Takes this rank's share of the experts in a group of these members."""
        if self._rank not in members:
            raise ValueError(f"members: rank {self._rank} is asked into a group of the ranks {members} without it")
        placement = ExpertPlacement(members.index(self._rank), len(members))
        if placement != self._spread.exchange.placement:
            _log.info("spreading the experts anew, over %d ranks", placement.size)
        with self._placing:
            self._spread.place(placement)


def _say_failure(future: Future[object]) -> None:
    error = future.exception()
    if isinstance(error, EngineError):
        _log.warning("the head's word on the group had no effect: %s", error)
    elif error is not None:
        _log.error("the head's word on the group had no effect", exc_info=error)


def _numeric(host: str) -> str:
    """The address of this machine that a name stands for. Raises OSError."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])

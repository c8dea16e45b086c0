"""Groups of torch.distributed, formed and given up again without its global state: gloo on a CPU, NCCL on a GPU.

Nothing here is authenticated or encrypted: docs/moe.md says where such a group may listen.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from engine.errors import GroupBrokenError

log = logging.getLogger(__name__)

# The classes that make one group without a global one are exported, and not typed.
dist: Any = torch.distributed

# How often a waiting member shows that it is alive.
_WAIT_SLICE_S = 0.25
# The longest that a member may let the others wait; a lost one is noticed much earlier, by its connection or its lease.
OPERATION_TIMEOUT_S = 120.0


class GroupListener:
    """Where the first member of a group awaits the others: a free port, on one address."""

    def __init__(self, address: str) -> None:
        """`address` is a number, not a name. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.target = join_address(address, self._socket.getsockname()[1])

    def detach(self) -> int:
        """The listening socket's descriptor; whoever takes it closes it."""
        return self._socket.detach()

    def close(self) -> None:
        """Does nothing after `detach`."""
        self._socket.close()


def join_address(host: str, port: int) -> str:
    """For example "192.0.2.1:4000" or "[::1]:4000"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(target: str) -> tuple[str, int]:
    """The inverse of `join_address`. Raises ValueError."""
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise ValueError(f"group_target: {target!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class ProcessGroup:
    """Implements Collectives."""

    def __init__(
        self,
        group: Any,
        store: Any,
        *,
        epoch: int,
        index: int,
        size: int,
        device: torch.device,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_wait` is called now and then, on the thread that waits for the others."""
        self._group = group
        self._store = store  # the first member's is the server of all
        self._device = device
        self._on_wait = on_wait
        self._broken = ""
        self._done = threading.Event()
        self.epoch = epoch
        self.index = index
        self.size = size

    def all_to_all(self, out: Tensor, rows: Tensor, received: list[int], sent: list[int]) -> None:
        # As bytes: gloo does not know every number format.
        self._finish(
            lambda: (
                self._group.alltoall_base(out.view(torch.uint8), rows.view(torch.uint8), received, sent)
                if rows.dim() > 1
                else self._group.alltoall_base(out, rows, received, sent)
            )
        )

    def maximum(self, values: tuple[int, ...]) -> tuple[int, ...]:
        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._finish(lambda: self._group.allreduce([tensor], options))
        return tuple(tensor.tolist())

    def interrupt(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._done.set()
        if self._device.type == "cuda":
            self._group.abort()

    def _finish(self, start: Callable[[], Any]) -> None:
        """Starts an operation and waits until it is done, or until the group is not any more."""
        if self._broken:
            raise GroupBrokenError(self._broken)
        try:
            work = start()
            if self._device.type == "cuda":
                work.wait()  # the stream waits, not this thread
                return
            self._await(work)
        except RuntimeError as error:
            self._broken = self._broken or _cause(error)
            raise GroupBrokenError(self._broken) from error

    def _await(self, work: Any) -> None:
        """An Event and not work.wait(), which nothing but its own timeout ends."""
        self._done = done = threading.Event()
        ended = False

        def end(_: object) -> None:
            nonlocal ended
            ended = True
            done.set()

        work.get_future().add_done_callback(end)
        while not self._broken and not done.wait(_WAIT_SLICE_S):
            self._on_wait()
        if not ended:
            _abandoned.append((self._group, self._store, work))
            raise GroupBrokenError(self._broken)
        work.wait()  # raises what it failed with


# Groups with an operation that never ended. To free one means to wait for it, so it is kept until it has failed.
_abandoned: list[tuple[Any, Any, Any]] = []


def form_group(
    *,
    target: str,
    listener: GroupListener | None,
    address: str,
    epoch: int,
    index: int,
    size: int,
    fingerprint: int,
    device: torch.device,
    timeout_s: float,
    on_wait: Callable[[], None] = lambda: None,
) -> ProcessGroup:
    """Connects this member with all others; blocks until it is done.

    `target` is where the first member listens, which has the `listener`. `address` is this machine's, a number, where
    the other members reach it. `fingerprint`, 63 bits, must be equal on all members. Raises GroupBrokenError.
    """
    _abandoned[:] = [entry for entry in _abandoned if not entry[2].is_completed()]
    started = time.monotonic()
    store_host, port = split_address(target)
    timeout = timedelta(seconds=timeout_s)
    try:
        descriptor = None if listener is None else listener.detach()
        store = dist.TCPStore(store_host, port, size, descriptor is not None, timeout, False, False, descriptor)
        prefixed = dist.PrefixStore(f"epoch {epoch}", store)
        made = _nccl(prefixed, index, size) if device.type == "cuda" else _gloo(prefixed, index, size, address)
        group = ProcessGroup(made, store, epoch=epoch, index=index, size=size, device=device, on_wait=on_wait)
    except (RuntimeError, ValueError) as error:
        raise GroupBrokenError(f"the group of epoch {epoch} was not formed: {_cause(error)}") from error
    greatest, least = group.maximum((fingerprint, -fingerprint))
    if greatest != -least:
        raise GroupBrokenError(
            f"the group of epoch {epoch} was not formed: its members do not have the same model, number format and "
            "experts per rank"
        )
    log.info("group of epoch %d: member %d of %d, formed in %.2f s", epoch, index, size, time.monotonic() - started)
    return group


def _gloo(store: Any, index: int, size: int, address: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=OPERATION_TIMEOUT_S)
    options._threads = 1
    return dist.ProcessGroupGloo(store, index, size, options)


def _nccl(store: Any, index: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=OPERATION_TIMEOUT_S)
    return dist.ProcessGroupNCCL(store, index, size, options)


def _cause(error: Exception) -> str:
    """The first sentence, without the place in the library's source in front."""
    lines = str(error).splitlines()
    sentence = re.sub(r"^\[[^\]]*/[^\]]*\] *", "", lines[0]).partition(". ")[0] if lines else ""
    return sentence or type(error).__name__

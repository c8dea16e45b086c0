"""A rank of an expert-parallel group: its place, its engine thread, and its stream to the head, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc

from engine.waves import WaveMember
from services.engine.options import EngineOptions
from services.engine.state import EngineState
from services.engine.wave_link import WaveLink
from services.rpc.identity import host_name
from services.rpc.listening import is_loopback
from services.rpc.security import SecurityError

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.loop import EngineLoop
    from engine.parallel.lockstep import Lockstep
    from engine.parallel.spreading import SpreadExperts

_log = logging.getLogger(__name__)

_WILDCARDS = ("0.0.0.0", "::", "[::]", "*", "")


def check_collectives(options: EngineOptions) -> None:
    """Raises SecurityError where tokens would leave the machine unencrypted although everything else is not to."""
    if options.engine.expert_parallel and options.security.serves_tls and not is_loopback(options.host):
        raise SecurityError(
            f"--enable-expert-parallel with --tls-cert and --host {options.host}: ranks exchange tokens through "
            "torch.distributed, which cannot encrypt them; give --host 127.0.0.1 when all ranks are on one machine, or "
            "leave --tls-cert out and give the machines a network of their own"
        )


async def with_place(config: EngineConfig, state: EngineState) -> EngineConfig:
    """The configuration with this rank's place in the group, for which the head has to be heard first."""
    if not config.expert_parallel:
        return config
    while (rank := state.now.rank) is None:
        await state.newer_than(state.version)
    return replace(config, group_index=rank, group_size=state.now.data_parallel_size)


class LockstepRank:
    """Made once the model is loaded."""

    def __init__(self, spread: SpreadExperts, state: EngineState, dial: Callable[[str], grpc.aio.Channel]) -> None:
        from engine.parallel.lockstep import Lockstep  # with torch, which is loaded by now

        self._spread = spread
        self._state = state
        self._link = WaveLink(state, dial)
        self.lockstep: Lockstep = Lockstep(WaveMember(), spread.exchange, spread.layers, self._link.tell)

    async def run(self, loop: EngineLoop, options: EngineOptions) -> None:
        """Keeps the stream to the head, and the rank in its group, until it is cancelled. `loop` runs."""
        from engine.parallel.group_member import GroupMember

        rank = self._state.now.rank
        assert rank is not None, "the place in the group is known before the model is loaded"
        member = GroupMember(
            loop, self.lockstep, self._spread, rank=rank, host=_own_host(options), on_listening=self._link.listening
        )
        await self._link.run(member)

    async def formed(self) -> None:
        """Returns once the group has stood for the first time."""
        await self._link.formed()


def _own_host(options: EngineOptions) -> str:
    """Where other members reach this one: where it listens, or, where that is everywhere, what it is called."""
    if options.host not in _WILDCARDS:
        return options.host.removeprefix("[").removesuffix("]")
    return options.advertise_host or host_name()

"""SyncWave's frames and one rank's waves: frames out, wire; wire in, calls on `Ears`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from muster import v1 as wire

from engine import waves as domain

_log = logging.getLogger(__name__)


class Ears(Protocol):
    """Of a rank, for what the head says."""

    def form(self, epoch: int, members: Sequence[int], target: str) -> None:
        """Form a group; `target` is where its first member listens, empty for that member."""
        ...

    def start(self, epoch: int, wave: int) -> None: ...

    def pause(self, epoch: int, wave: int) -> None: ...

    def disband(self, epoch: int, reason: str) -> None: ...


def to_request(frame: domain.Frame, *, rank: int, incarnation: int) -> wire.SyncWaveRequest:
    request = wire.SyncWaveRequest(rank=rank, epoch=frame.epoch, incarnation=incarnation)
    match frame:
        case domain.Standing():
            standing = wire.Standing(wave=frame.wave, running=frame.running, has_work=frame.has_work)
            request.MergeFrom(wire.SyncWaveRequest(standing=standing))
        case domain.Started():
            request.MergeFrom(wire.SyncWaveRequest(started=wire.WaveStarted(wave=frame.wave)))
        case domain.Ended(paused=True):
            request.MergeFrom(wire.SyncWaveRequest(paused=wire.WavePaused(wave=frame.wave, steps=frame.steps)))
        case domain.Ended():
            request.MergeFrom(wire.SyncWaveRequest(finished=wire.WaveFinished(wave=frame.wave, steps=frame.steps)))
    return request


def listening(epoch: int, group_target: str, *, rank: int, incarnation: int) -> wire.SyncWaveRequest:
    """The answer to a FormGroup without target."""
    frame = wire.GroupListening(group_target=group_target)
    return wire.SyncWaveRequest(rank=rank, epoch=epoch, incarnation=incarnation, listening=frame)


def apply(ears: Ears, response: wire.SyncWaveResponse) -> None:
    """Passes one frame of the head on; one of a newer contract changes nothing."""
    epoch = response.epoch
    match response.WhichOneof("frame"):
        case "start":
            ears.start(epoch, response.start.wave)
        case "pause":
            ears.pause(epoch, response.pause.wave)
        case "form":
            ears.form(epoch, tuple(response.form.members), response.form.group_target)
        case "disband":
            ears.disband(epoch, response.disband.reason)
        case other:
            _log.debug("the head sent %s, of another contract; ignored", other)

"""SyncWave's frames and the head's waves: wire in, calls on `Waves`; frames out, wire."""

from __future__ import annotations

from muster import v1 as wire

from services.head import waves as domain
from services.head.waves import Waves


def apply(waves: Waves, rank: int, request: wire.SyncWaveRequest) -> domain.Frames:
    """Takes one frame of a rank; one of a newer contract changes nothing."""
    epoch = request.epoch
    match request.WhichOneof("frame"):
        case "standing":
            standing = request.standing
            return waves.stands(rank, epoch, standing.wave, running=standing.running, has_work=standing.has_work)
        case "listening":
            return waves.listens(rank, epoch, request.listening.group_target)
        case "started":
            return waves.started(rank, epoch, request.started.wave)
        case "finished":
            return waves.ended(rank, epoch, request.finished.wave)
        case "paused":
            return waves.ended(rank, epoch, request.paused.wave)
        case _:
            return ()


def to_response(frame: domain.Frame) -> wire.SyncWaveResponse:
    match frame:
        case domain.Form():
            form = wire.FormGroup(members=frame.members, group_target=frame.target)
            return wire.SyncWaveResponse(epoch=frame.epoch, form=form)
        case domain.Disband():
            return wire.SyncWaveResponse(epoch=frame.epoch, disband=wire.DisbandGroup(reason=frame.reason))
        case domain.Start():
            return wire.SyncWaveResponse(epoch=frame.epoch, start=wire.StartWave(wave=frame.wave))
        case domain.Pause():
            return wire.SyncWaveResponse(epoch=frame.epoch, pause=wire.PauseWave(wave=frame.wave))

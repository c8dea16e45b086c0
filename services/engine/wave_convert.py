"""SyncWave's frames and one rank's waves: frames out, wire; wire in, calls on `WaveMember`."""

from __future__ import annotations

from muster import v1 as wire

from engine import waves as domain
from engine.waves import WaveMember


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


def apply(member: WaveMember, response: wire.SyncWaveResponse, *, rank: int, has_work: bool) -> domain.Frames:
    """Takes one frame of the head. After a FormGroup that came in time, `member.epoch` is its epoch, not yet formed."""
    epoch = response.epoch
    match response.WhichOneof("frame"):
        case "start":
            member.start(epoch, response.start.wave)
        case "pause":
            member.pause(epoch, response.pause.wave)
        case "form":
            members = response.form.members
            member.form(epoch, is_first=bool(members) and members[0] == rank)
        case "disband":
            return member.disband(epoch, has_work=has_work)
        case _:
            pass  # of a newer contract
    return ()

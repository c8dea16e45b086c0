"""The head's border between wire types and domain types."""

from __future__ import annotations

import math

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from muster import v1 as wire

from services.head.admission import Introduction, Offer
from services.head.load_table import Load
from services.head.roster import Phase, RankRecord


def introduction(hello: wire.Hello) -> Introduction:
    return Introduction(
        protocol_min=hello.protocol.min,
        protocol_max=hello.protocol.max,
        product_version=hello.product_version,
        deployment_id=hello.deployment_id,
        rank=hello.rank if hello.HasField("rank") else None,
        data_parallel_size=hello.data_parallel_size if hello.HasField("data_parallel_size") else None,
        host=hello.host,
        host_id=hello.host_id,
        pid=hello.pid,
        incarnation=hello.incarnation,
        local=hello.local,
        headless=hello.headless,
        configuration=dict(hello.configuration),
        accepted_by=hello.accepted_by,
    )


def offer(ready: wire.Ready) -> Offer:
    return Offer(tuple(ready.targets), ready.model, tuple(ready.capabilities))


def phase(value: wire.EnginePhase.ValueType) -> Phase:
    """The phase; one that this version does not know is UNSPECIFIED."""
    if value not in wire.EnginePhase.values():
        return Phase.UNSPECIFIED
    return Phase[wire.EnginePhase.Name(value).removeprefix("ENGINE_PHASE_")]


def rank_entry(record: RankRecord, *, num_asked: int, wall_offset_s: float) -> wire.RankEntry:
    """`wall_offset_s` added to the head's clock gives seconds since the epoch."""
    entry = wire.RankEntry(
        rank=record.rank,
        state=wire.RankState.Value(f"RANK_STATE_{record.state.name}"),
        phase=wire.EnginePhase.Value(f"ENGINE_PHASE_{record.phase.name}"),
        phase_done=record.phase_done,
        phase_total=record.phase_total,
        since=timestamp(record.since_s + wall_offset_s),
        reason=record.reason,
        num_asked=num_asked,
    )
    engine = record.engine
    if engine is not None:
        entry.host, entry.host_id, entry.pid = engine.host, engine.host_id, engine.pid
        entry.incarnation, entry.product_version = engine.incarnation, engine.product_version
        entry.local, entry.headless = engine.local, engine.headless
    if record.offer is not None:
        entry.targets.extend(record.offer.targets)
        entry.model.CopyFrom(record.offer.model)
    return entry


def rank_load(load: Load, *, now_s: float) -> wire.RankLoad:
    age_ms = max(0, round((now_s - load.arrived_s) * 1000))
    return wire.RankLoad(rank=load.rank, stats=load.stats, age_ms=age_ms, incarnation=load.incarnation)


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def timestamp(seconds: float) -> Timestamp:
    message = Timestamp()
    fraction, whole = math.modf(seconds)
    message.seconds, message.nanos = int(whole), int(fraction * 1e9)
    return message

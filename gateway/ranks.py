"""Data-parallel ranks as a gateway sees them: frozen values, made from the wire in `gateway.wire_convert`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from muster import v1 as wire


class RankState(Enum):
    """The life of one rank as the head sees it; UNKNOWN is a state that this schema does not know."""

    UNKNOWN = "unknown"
    MISSING = "missing"
    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Rank:
    """One entry of the roster. `rank` is global; `targets` and `model` are there once READY."""

    rank: int
    state: RankState
    incarnation: int = 0
    host: str = ""
    host_id: str = ""
    targets: tuple[str, ...] = ()
    model: wire.ModelInfo | None = None
    phase: str = ""
    phase_done: int = 0
    phase_total: int = 0
    reason: str = ""
    since_s: float | None = None  # in this state since then, in seconds since the epoch


@dataclass(frozen=True, slots=True)
class GatewayPeer:
    """A gateway of the deployment and where others reach it; an older one tells no `targets`."""

    name: str
    host_id: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is in the deployment; `sequence` compares only within one `head_incarnation`. `gateways` are those that share
    ranks with this one, `peers` are all."""

    sequence: int
    head_incarnation: int
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    gateways: tuple[str, ...] = ()
    peers: tuple[GatewayPeer, ...] = ()


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One rank's numbers and their age when the head sent them. `None`: the engine cannot tell."""

    rank: int
    incarnation: int
    age_s: float = 0.0
    waiting: int = 0
    running: int = 0
    kv_usage: float | None = None
    waiting_tokens: int | None = None
    prompt_tokens_total: int | None = None
    generated_tokens_total: int | None = None
    prefix_cache_queries_total: int | None = None
    prefix_cache_hits_total: int | None = None
    preemptions_total: int | None = None
    group_steps_total: int | None = None
    dummy_steps_total: int | None = None
    exchanged_bytes_total: int | None = None


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """The load of the live ranks that have reported; `sequence` compares only within one `head_incarnation`."""

    sequence: int
    head_incarnation: int
    loads: tuple[RankLoad, ...] = ()

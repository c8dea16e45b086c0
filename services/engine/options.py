"""What `muster engine` is told, and the address it tells others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from services.rpc.security import OPEN, Security


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What `muster engine` was told. `engine` is the engine's own configuration."""

    engine: EngineConfig
    head_target: str
    deployment_id: str = ""  # empty joins whatever the head runs
    rank: int | None = None  # global; None asks for any
    data_parallel_size: int | None = None  # None accepts the head's
    host: str = "127.0.0.1"  # to bind
    port: int = 0
    advertise_host: str | None = None  # what others dial; None: host, or the host's name when host is a wildcard
    unix_path: Path | None = None
    health_port: int | None = None  # for probes that cannot speak TLS
    served_model_names: tuple[str, ...] = ()
    local: bool = False  # started by the head's own launcher
    headless: bool = False
    node_name: str = ""  # for people; empty: the host's name
    configuration: Mapping[str, str] | None = None  # settings that must be equal on all ranks
    shutdown_timeout_s: float = 30.0
    head_timeout_s: float | None = None  # without a head for so long the engine ends; None: never
    security: Security = OPEN

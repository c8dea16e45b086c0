"""`muster status`: one screen about a running deployment, from one answer of the head."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

import grpc
from google.protobuf.json_format import MessageToJson
from muster import v1 as wire

from services.cli import flag_table
from services.cli.flag import read_flags
from services.cli.head_target import head_target_of
from services.cli.security_flags import dialer_of
from services.rpc.channels import Dialer

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    values = read_flags(flag_table.STATUS, namespace, environment)
    target = head_target_of(values)
    dialer = dialer_of(values)
    with dialer.dial_blocking(target) as channel:
        stub = wire.RendezvousServiceStub(channel)
        try:
            deployment = stub.GetDeployment(wire.GetDeploymentRequest(), timeout=values["timeout"])
        except grpc.RpcError as error:
            print(no_answer("status", target, error, dialer), file=sys.stderr)
            return 1
    if namespace.json:
        print(MessageToJson(deployment, always_print_fields_with_no_presence=True))
    else:
        print("\n".join(status_lines(deployment, now=time.time())))
    return 0


def status_lines(deployment: wire.GetDeploymentResponse, *, now: float) -> list[str]:
    """`now` is seconds since the epoch."""
    roster = deployment.roster
    ready = sum(entry.state == wire.RANK_STATE_READY for entry in roster.ranks)
    up = duration(now - deployment.started_at.seconds)
    lines = [
        f"deployment {roster.deployment_id}: {ready} of {roster.data_parallel_size} ranks ready{_room(roster)}, "
        f"head up {up}, version {deployment.product_version}",
        *_model_lines(roster),
        "",
        *table(_rank_rows(deployment, now)),
    ]
    if roster.gateways:
        rows = [("GATEWAY", "HOST", "PID", "HTTP", "GRPC", "RANKS")]
        rows += [(g.name, g.host, str(g.pid), g.http_url, g.grpc_target, _scope(g)) for g in roster.gateways]
        lines += ["", *table(rows)]
    else:
        lines += ["", "no gateway"]
    if deployment.HasField("ready_deadline"):
        lines += ["", f"{deployment.ready_deadline.seconds} s left for the missing ranks"]
    return lines


def _room(roster: wire.Roster) -> str:
    most = roster.max_data_parallel_size
    return f" (up to {most})" if most > roster.data_parallel_size else ""


def _scope(gateway: wire.GatewayEntry) -> str:
    return ",".join(map(str, gateway.ranks)) or "all"


def _model_lines(roster: wire.Roster) -> list[str]:
    for entry in roster.ranks:
        if entry.HasField("model"):
            model = entry.model
            quantization = f" {model.quantization}" if model.quantization else ""
            facts = f"{model.architecture}, {model.dtype}{quantization}, context {model.max_model_len} tokens"
            return [f"model {', '.join(model.served_model_names)}: {facts}"]
    return []


def _rank_rows(deployment: wire.GetDeploymentResponse, now: float) -> list[tuple[str, ...]]:
    loads = {load.rank: load for load in deployment.loads}
    rows: list[tuple[str, ...]] = [
        ("RANK", "STATE", "FOR", "HOST", "PID", "RUNNING", "WAITING", "KV", "TOKENS OUT", "AGE", "NOTE")
    ]
    for entry in deployment.roster.ranks:
        load = loads.get(entry.rank)
        since = duration(now - entry.since.seconds) if entry.HasField("since") else "-"
        host, pid = entry.host or "-", str(entry.pid or "-")
        rows.append((str(entry.rank), state_name(entry), since, host, pid, *_load_cells(load), _note(entry)))
    return rows


def _note(entry: wire.RankEntry) -> str:
    """Why it is in its state, where that says more than the state."""
    return "" if entry.reason == state_name(entry) else entry.reason


def _load_cells(load: wire.RankLoad | None) -> tuple[str, str, str, str, str]:
    if load is None:
        return ("-", "-", "-", "-", "-")
    stats = load.stats
    usage = f"{stats.kv_usage:.0%}" if stats.HasField("kv_usage") else "-"
    generated = str(stats.generated_tokens_total) if stats.HasField("generated_tokens_total") else "-"
    return (str(stats.running), str(stats.waiting), usage, generated, f"{load.age_ms / 1000:.1f}s")


def state_name(entry: wire.RankEntry) -> str:
    """ "ready", or "joining: loading weights 12/272"."""
    state = wire.RankState.Name(entry.state).removeprefix("RANK_STATE_").lower()
    if entry.state != wire.RANK_STATE_JOINING:
        return state
    phase = wire.EnginePhase.Name(entry.phase).removeprefix("ENGINE_PHASE_").lower().replace("_", " ")
    progress = f" {entry.phase_done}/{entry.phase_total}" if entry.phase_total else ""
    return f"{state}: {phase}{progress}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    hours = whole // 3600
    return f"{hours // 24}d{hours % 24:02d}h" if hours >= 24 else f"{hours}h{whole % 3600 // 60:02d}m"


def no_answer(command: str, target: str, error: grpc.RpcError, dialer: Dialer) -> str:
    """What to tell when the head did not do what was asked."""
    if isinstance(error, grpc.Call) and error.code() in _REFUSALS:
        return f"muster {command}: the head at {target} refuses: {error.details()}; give --cluster-token-file"
    why = dialer.trouble_with(target) or reason(error)
    return (
        f"muster {command}: no head answered at {target} ({why}).\n"
        "Is `muster serve` running? Another address: --head-target HOST:PORT"
    )


def reason(error: grpc.RpcError) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    return code.name.lower().replace("_", " ") if code is not None else str(error)

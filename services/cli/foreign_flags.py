"""Flags of vLLM's data parallelism that Muster does not have, and what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

_NODES = (
    "a rank is on one node; run `muster serve` on every node with the same --data-parallel-size, its own "
    "--data-parallel-size-local and the head's --data-parallel-address"
)
_ONE_DEVICE = "a rank is one process on one device; leave it out, and give more ranks with --data-parallel-size"
_LOCKSTEP = (
    "it tunes ranks that compute in lockstep; with --enable-expert-parallel they vote before every step and exchange "
    "tokens over gloo or NCCL; leave it out"
)
_ALWAYS_ON = (
    "lost ranks are always restarted and their answers continued; leave it out (--max-rank-losses and "
    "--max-early-deaths set the limits)"
)
_OWN_SERVER = "give every rank a server of its own: `muster serve --data-parallel-rank RANK` with ports of its own"
_WATCHED = "the launcher watches its processes itself; leave it out"

_INSTEAD: dict[str, str] = {
    **dict.fromkeys(("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port"), _NODES),
    **dict.fromkeys(("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"), _ONE_DEVICE),
    "--data-parallel-multi-port-external-lb": _OWN_SERVER,
    **dict.fromkeys(
        (
            "--data-parallel-supervisor-port",
            "--dp-supervisor-probe-interval-s",
            "--dp-supervisor-probe-timeout-s",
            "--dp-supervisor-probe-failure-threshold",
        ),
        _WATCHED,
    ),
    **dict.fromkeys(
        ("--data-parallel-backend", "-dpb"),
        "the launcher starts processes on its node; under Ray or Kubernetes start `muster head`, `engine` and "
        "`gateway` yourself",
    ),
    **dict.fromkeys(
        (
            "--all2all-backend",
            "--enable-eplb",
            "--eplb-config",
            "--enable-dbo",
            "--ubatch-size",
            "--dbo-decode-token-threshold",
            "--dbo-prefill-token-threshold",
            "--dp-sync-interval",
            "--prefill-schedule-interval",
            "--disable-nccl-for-dp-synchronization",
        ),
        _LOCKSTEP,
    ),
    **dict.fromkeys(
        ("--enable-elastic-ep", "--elastic-ep-max-dp-size"),
        "leave it out: muster scale adds ranks to --data-parallel-size, up to --max-data-parallel-size",
    ),
    **dict.fromkeys(("--enable-fault-tolerance", "--fault-tolerance-config"), _ALWAYS_ON),
    "--grpc": "InferenceService is always served, on --grpc-port; leave it out",
}


def instead_of(arguments: Sequence[str], unknown: str) -> str | None:
    """What to do instead of `unknown`, one of `arguments`, named with its value; None when vLLM has no such flag."""
    flag, _, value = unknown.partition("=")
    if flag not in _INSTEAD:
        return None
    if not value and unknown in arguments:
        following = arguments[arguments.index(unknown) + 1 :][:1]
        value = following[0] if following and not following[0].startswith("-") else ""
    return f"{flag}{f' {value}' if value else ''}: {_INSTEAD[flag]}"

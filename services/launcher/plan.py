"""Which child processes a node runs and with which command lines. Pure: options and places in, plans out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from services.configuration import advisory_configuration, canonical_configuration
from services.launcher.devices import ORDER_VARIABLE, VISIBLE_VARIABLE, Assignment
from services.launcher.options import ServeOptions

# The variables that carry secrets to a gateway: a command line can be read by everybody on the machine.
API_KEY_VARIABLE = "MUSTER_API_KEY"
PARENT_VARIABLE = "MUSTER_PARENT_PID"
# Where the plan knows better than the environment: the list that the user gave is for the whole node.
_ASSIGNED_VARIABLES = {VISIBLE_VARIABLE, ORDER_VARIABLE}


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to run: its name in logs, the arguments after `muster`, and what it inherits."""

    name: str  # "engine 0"
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    inherited_fds: tuple[int, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "services.cli", *self.arguments)


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """Compute threads of one rank: those that always compute, and spare ones that rest while others need their core."""

    reserved: int
    spare: int


@dataclass(frozen=True, slots=True)
class Places:
    """What the launcher found out before it starts anything."""

    runtime_dir: Path
    model_path: Path
    served_model_names: tuple[str, ...]
    threads: ThreadShare
    engine_host: str
    http_fds: tuple[int, ...] = ()
    grpc_port: int = 0  # reserved, the real one
    assignment: Assignment | None = None  # of GPUs; None: the engines see what the launcher sees

    @property
    def head_socket(self) -> Path:
        return self.runtime_dir / "head.sock"

    def gateway_socket(self, index: int) -> Path:
        return self.runtime_dir / f"g{index}.sock"

    @property
    def metrics_dir(self) -> Path:
        return self.runtime_dir / "metrics"

    @property
    def head_targets_file(self) -> Path:
        return self.runtime_dir / "head.targets"


def plan_head(options: ServeOptions, places: Places, *, port: int, wanted_size: int | None = None) -> ChildSpec:
    """`port` is the flag's at first, and the one that was really taken when the head is restarted; `wanted_size` is the
    one that its predecessor told."""
    arguments = ["head", "--data-parallel-size", str(options.data_parallel_size)]
    arguments += _given("--max-data-parallel-size", options.max_data_parallel_size)
    arguments += _given("--wanted-size", None if wanted_size == options.data_parallel_size else wanted_size)
    arguments += ["--deployment-id", options.deployment_id]
    arguments += ["--host", options.head_bind_address, "--port", str(port)]
    arguments += ["--unix-path", str(places.head_socket), "--targets-file", str(places.head_targets_file)]
    arguments += ["--ready-timeout", _number(options.ready_timeout)]
    arguments += ["--heartbeat-interval", _number(options.heartbeat_interval)]
    arguments += ["--heartbeat-timeout", _number(options.heartbeat_timeout)]
    arguments += _given("--shrink-expert-group-after", options.shrink_expert_group_after)
    if options.num_local_ranks:
        arguments += ["--local-ranks", f"0-{options.num_local_ranks - 1}"]
    configuration = canonical_configuration(
        model=places.model_path,
        dtype=options.dtype,
        quantization=options.quantization,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        seed=options.seed,
        served_model_names=places.served_model_names,
        enable_expert_parallel=options.enable_expert_parallel,
    )
    arguments += ["--configuration", *(f"{key}={value}" for key, value in configuration.items())]
    advice = advisory_configuration(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_queued_reqs=options.max_num_queued_reqs,
        enable_prefix_caching=options.enable_prefix_caching,
    )
    arguments += ["--advice", *(f"{key}={value}" for key, value in advice.items())]
    return ChildSpec("head", (*arguments, *options.security.flags(), *_logging(options)))


def plan_engines(options: ServeOptions, places: Places) -> list[ChildSpec]:
    return [plan_engine(options, places, slot=slot, rank=rank) for slot, rank in enumerate(options.local_ranks)]


def plan_engine(options: ServeOptions, places: Places, *, slot: int, rank: int | None) -> ChildSpec:
    """`slot` is the place on this node, below `max_local_ranks`: its socket and its GPU."""
    name = f"engine {rank}" if rank is not None else f"engine {'abcdefghijklmnopqrstuvwxyz'[slot % 26]}"
    arguments = ["engine", str(places.model_path)]
    arguments += ["--head-target", head_target(options, places)]
    arguments += ["--deployment-id", options.deployment_id]
    if rank is None or rank < options.data_parallel_size:  # a later one takes the size as it is then
        arguments += ["--data-parallel-size", str(options.data_parallel_size)]
    if rank is not None:
        arguments += ["--rank", str(rank)]
    arguments += ["--enable-expert-parallel"] if options.enable_expert_parallel else []
    if options.headless:
        arguments += ["--headless"]
    if options.runs_head:
        arguments += ["--local"]
    if advertised := _advertised_host(options):
        arguments += ["--advertise-host", advertised]
    arguments += ["--host", places.engine_host, "--unix-path", str(places.runtime_dir / f"e{slot}.sock")]
    arguments += ["--served-model-name", *places.served_model_names]
    assignment = places.assignment or Assignment(options.device)
    arguments += ["--dtype", options.dtype, "--device", assignment.device]
    arguments += ["--attention-backend", options.attention_backend]
    arguments += ["--enforce-eager"] if options.enforce_eager else []
    arguments += ["--max-cudagraph-capture-size", str(options.max_cudagraph_capture_size)]
    arguments += ["--gpu-memory-utilization", _number(options.gpu_memory_utilization)]
    arguments += ["--kernels", options.kernels, "--load-format", options.load_format]
    arguments += ["--quantization", options.quantization]
    arguments += ["--model-cache", str(options.model_cache)]
    arguments += ["--seed", str(options.seed), "--block-size", str(options.block_size)]
    arguments += _given("--max-model-len", options.max_model_len)
    arguments += _given("--num-blocks", options.num_blocks)
    arguments += _given("--kv-cache-memory", options.kv_cache_memory)
    arguments += ["--max-num-seqs", str(options.max_num_seqs)]
    arguments += ["--max-num-batched-tokens", str(options.max_num_batched_tokens)]
    arguments += ["--max-num-queued-reqs", str(options.max_num_queued_reqs)]
    arguments += ["--enable-prefix-caching" if options.enable_prefix_caching else "--no-enable-prefix-caching"]
    arguments += ["--num-threads", str(places.threads.reserved), "--num-spare-threads", str(places.threads.spare)]
    arguments += ["--shutdown-timeout", _number(options.shutdown_timeout)]
    arguments += _given("--head-timeout", options.head_timeout)
    # torch and its libraries size their thread pools when they are imported, before any flag is read.
    num_threads = str(places.threads.reserved)
    threads = (("OMP_NUM_THREADS", num_threads), ("MKL_NUM_THREADS", num_threads))
    return ChildSpec(
        name,
        (*arguments, *options.security.flags(), *_logging(options)),
        environment=(*threads, *assignment.environment(slot)),
    )


def _advertised_host(options: ServeOptions) -> str | None:
    """Where gateways of other nodes reach this node's engines, when that is not the address they listen on."""
    if options.engine_advertise_host is None and options.engine_host is None and options.is_joined_from_elsewhere:
        return options.data_parallel_address
    return options.engine_advertise_host


def plan_gateways(options: ServeOptions, places: Places) -> list[ChildSpec]:
    return [_plan_gateway(options, places, index) for index in range(options.num_gateways)]


def _plan_gateway(options: ServeOptions, places: Places, index: int) -> ChildSpec:
    arguments = ["gateway", "--head-target", head_target(options, places)]
    ranks = options.gateway_ranks
    arguments += ["--ranks", f"{ranks[0]}-{ranks[-1]}"] if ranks else []
    arguments += ["--host", options.host, "--port", str(options.port)]
    arguments += ["--http-fd", *map(str, places.http_fds)]
    arguments += ["--grpc-port", str(places.grpc_port), "--reuse-port"]
    arguments += ["--metrics-dir", str(places.metrics_dir)]
    arguments += _given("--request-timeout", options.request_timeout)
    arguments += ["--max-body-size", str(options.max_body_size), "--ping-interval", _number(options.ping_interval)]
    arguments += ["--smg"] if options.smg else []
    arguments += ["--open-metrics"] if options.open_metrics else []
    arguments += ["--response-store-size", str(options.response_store_size)]
    arguments += ["--response-ttl", _number(options.response_ttl)]
    arguments += ["--unix-path", str(places.gateway_socket(index))]
    arguments += ["--any-model-name"] if options.any_model_name else []
    arguments += ["--allowed-origins", *options.allowed_origins] if options.allowed_origins else []
    arguments += [] if options.page else ["--no-page"]
    arguments += ["--root-path", options.root_path] if options.root_path else []
    arguments += options.http_front.flags()
    arguments += ["--shutdown-timeout", _number(options.shutdown_timeout)]
    arguments += ["--max-rank-losses", str(options.max_rank_losses)]
    secrets = ((API_KEY_VARIABLE, ",".join(options.api_key)),) if options.api_key else ()
    return ChildSpec(
        f"gateway {index}" if options.num_gateways > 1 else "gateway",
        (*arguments, *options.security.flags(), *_logging(options)),
        environment=secrets,
        inherited_fds=places.http_fds,
    )


def restarted_gateway(spec: ChildSpec) -> ChildSpec:
    return replace(spec, arguments=(*spec.arguments, "--wait-until-ready"))


def head_target(options: ServeOptions, places: Places) -> str:
    """Where this node's engines and gateways dial the head."""
    if not options.runs_head:
        return join_host_port(options.head_address, options.data_parallel_rpc_port)
    return f"unix:{places.head_socket}"


def join_host_port(host: str, port: int) -> str:
    bare = host.removeprefix("[").removesuffix("]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def threads_per_rank(options: ServeOptions, num_cores: int) -> ThreadShare:
    """One core is left to gateway and head while they need it. What was given is kept to."""
    num_ranks = max(1, options.num_local_ranks)
    reserved = options.num_threads or max(1, (num_cores - 1) // max(1, options.max_local_ranks))
    if options.num_spare_threads is not None:
        return ThreadShare(reserved, options.num_spare_threads)
    return ThreadShare(reserved, 0 if options.num_threads else max(0, num_cores // num_ranks - reserved))


def num_usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def child_environment(spec: ChildSpec, parent: Mapping[str, str], *, own_variables: Iterable[str]) -> dict[str, str]:
    """The child's environment: the launcher's, without `own_variables`, with what the plan adds.

    The launcher's flags were read from those variables already and stand on the command line; to the child
    MUSTER_PORT would mean its own port.
    """
    removed = set(own_variables)
    environment = {key: value for key, value in parent.items() if key not in removed}
    environment.update({"PYTHONUNBUFFERED": "1", PARENT_VARIABLE: str(os.getpid())})
    for key, value in spec.environment:
        if key.startswith("MUSTER_") or key in _ASSIGNED_VARIABLES:
            environment[key] = value
        else:
            environment.setdefault(key, value)  # what the user set, for example OMP_NUM_THREADS, stays
    return environment


def _given(flag: str, value: int | float | None) -> list[str]:
    return [] if value is None else [flag, _number(value)]


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")


def _logging(options: ServeOptions) -> tuple[str, ...]:
    return ("--log-level", options.log_level, "--log-format", options.log_format)

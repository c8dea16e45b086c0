"""`muster head`, `muster engine` and `muster gateway`: one process of a deployment each."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli import flag_table
from services.cli.flag import FlagValueError, read_flags
from services.cli.logs import set_up_logging
from services.cli.security_flags import security_of
from services.configuration import advisory_configuration, canonical_configuration
from services.http_front import HttpFront, HttpFrontError

_log = logging.getLogger(__name__)

# The head's node may be replaced meanwhile; beyond it an orchestrator makes better use of the memory.
HEADLESS_HEAD_TIMEOUT_S = 300.0

if TYPE_CHECKING:
    from services.engine.server import EngineOptions


def run_head_command(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    values = read_flags(flag_table.HEAD, namespace, environment)
    set_up_logging(values["log_level"], values["log_format"], "head")
    from services.head.server import HeadOptions, run_head
    from services.rpc.runtime import run

    options = HeadOptions(
        deployment_id=values["deployment_id"],
        data_parallel_size=values["data_parallel_size"],
        max_data_parallel_size=values["max_data_parallel_size"],
        wanted_size=values["wanted_size"],
        configuration=dict(values["configuration"]),
        advice=dict(values["advice"]),
        host=values["host"],
        port=values["port"],
        unix_path=values["unix_path"],
        health_port=values["health_port"],
        ready_timeout_s=values["ready_timeout"],
        heartbeat_interval_s=values["heartbeat_interval"],
        heartbeat_timeout_s=values["heartbeat_timeout"],
        shrink_group_after_s=values["shrink_expert_group_after"],
        local_ranks=values["local_ranks"],
        security=security_of(values),
    )
    targets_file: Path | None = values["targets_file"]

    def on_listening(targets: list[str]) -> None:
        if targets_file is None:
            return
        try:
            write_targets(targets_file, targets)
        except OSError as error:
            trouble = f"--targets-file {targets_file}: {error.strerror}"
            if not values["port"]:  # nobody knows it otherwise
                raise FlagValueError(f"{trouble}; give a file that can be written, or a --port") from None
            _log.warning("%s; whoever reads it does not learn where this head listens", trouble)

    return run(run_head(options, on_listening=on_listening))


def write_targets(path: Path, targets: list[str]) -> None:
    """Atomically: a reader sees all targets or no file."""
    scratch = path.with_suffix(".new")
    scratch.write_text("\n".join(targets) + "\n")
    os.replace(scratch, path)


def run_engine_command(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    values = read_flags(flag_table.ENGINE, namespace, environment)
    if values["rank"] is not None and values["data_parallel_size"] is not None:
        _check_rank(values)
    set_up_logging(values["log_level"], values["log_format"], "engine" if values["rank"] is None else _name(values))
    from services.models.checkpoint import ModelNotFoundError, resolve_model

    try:
        model = resolve_model(namespace.model, values["model_cache"])
    except ModelNotFoundError as error:
        print(f"muster engine: {error}", file=sys.stderr)
        return 1
    from services.rpc.runtime import poll_for_what_is_awaited, run

    poll_for_what_is_awaited()
    from services.engine.server import run_engine

    try:
        options = engine_options(values, model.path, model.name)
    except ValueError as error:
        raise FlagValueError(str(error)) from None
    return run(run_engine(options))


def run_offline_rank_command(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """One rank of an offline run, started by `services.offline.transport` with an engine's flags."""
    values = read_flags(flag_table.ENGINE, namespace, environment)
    set_up_logging(values["log_level"], values["log_format"], f"rank {values['rank']}")
    from services.offline.worker import run_worker
    from services.rpc.runtime import run

    options = engine_options(values, Path(namespace.model), Path(namespace.model).stem)
    return run(run_worker(options.engine, options.served_model_names))


def _check_rank(values: Mapping[str, Any]) -> None:
    rank, size = values["rank"], values["data_parallel_size"]
    if rank >= size:
        raise FlagValueError(f"--rank {rank} does not exist with --data-parallel-size {size}: give 0 to {size - 1}")


def _name(values: Mapping[str, Any]) -> str:
    return f"engine {values['rank']}"


def engine_options(values: Mapping[str, Any], model_path: Path, model_name: str) -> EngineOptions:
    from services.engine.server import EngineOptions
    from services.engine.settings import engine_config

    names: tuple[str, ...] = values["served_model_name"] or (model_name,)
    configuration = canonical_configuration(
        model=model_path,
        dtype=values["dtype"],
        quantization=values["quantization"],
        max_model_len=values["max_model_len"],
        block_size=values["block_size"],
        seed=values["seed"],
        served_model_names=names,
        enable_expert_parallel=values["enable_expert_parallel"],
    )
    advice = advisory_configuration(
        max_num_seqs=values["max_num_seqs"],
        max_num_batched_tokens=values["max_num_batched_tokens"],
        max_num_queued_reqs=values["max_num_queued_reqs"],
        enable_prefix_caching=values["enable_prefix_caching"],
    )
    return EngineOptions(
        engine=engine_config(
            model_path=model_path,
            cache_directory=values["model_cache"],
            load_format=values["load_format"],
            dtype=values["dtype"],
            device=values["device"],
            attention_backend=values["attention_backend"],
            gpu_memory_utilization=values["gpu_memory_utilization"],
            enforce_eager=values["enforce_eager"],
            max_cudagraph_capture_size=values["max_cudagraph_capture_size"],
            kernels=values["kernels"],
            quantization=values["quantization"],
            seed=values["seed"],
            block_size=values["block_size"],
            num_blocks=values["num_blocks"],
            kv_cache_bytes=values["kv_cache_memory"],
            max_model_len=values["max_model_len"],
            max_num_seqs=values["max_num_seqs"],
            max_num_batched_tokens=values["max_num_batched_tokens"],
            max_queued=values["max_num_queued_reqs"],
            prefix_caching=values["enable_prefix_caching"],
            num_threads=values["num_threads"],
            num_spare_threads=values["num_spare_threads"] or 0,
            expert_parallel=values["enable_expert_parallel"],
        ),
        head_target=values["head_target"],
        deployment_id=values["deployment_id"],
        rank=values["rank"],
        data_parallel_size=values["data_parallel_size"],
        host=values["host"],
        port=values["port"],
        advertise_host=values["advertise_host"],
        unix_path=values["unix_path"],
        health_port=values["health_port"],
        served_model_names=names,
        local=values["local"],
        headless=values["headless"],
        node_name=values["node_name"] or "",
        configuration={**configuration, **advice},
        shutdown_timeout_s=values["shutdown_timeout"],
        head_timeout_s=_head_timeout_s(values),
        security=security_of(values),
    )


def _head_timeout_s(values: Mapping[str, Any]) -> float | None:
    given: float | None = values["head_timeout"]
    if given is None and values["headless"]:
        given = HEADLESS_HEAD_TIMEOUT_S
    return given or None


def _share_metrics(directory: Path) -> None:
    """prometheus_client decides by this variable, when it is imported, where metrics are kept."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlagValueError(f"--metrics-dir {directory}: {error.strerror}; give a directory to write to") from None
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)


def run_gateway_command(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    values = read_flags(flag_table.GATEWAY, namespace, environment)
    set_up_logging(values["log_level"], values["log_format"], "gateway")
    if values["metrics_dir"] is not None:
        _share_metrics(values["metrics_dir"])
    from services.gateway.server import GatewayOptions, run_gateway
    from services.rpc.runtime import run

    front = HttpFront.of(values)
    try:
        front.check()
        keys = front.keys()
    except HttpFrontError as error:
        raise FlagValueError(str(error)) from None
    options = GatewayOptions(
        head_target=values["head_target"],
        ranks=values["ranks"] or (),
        name=values["name"],
        host=values["host"],
        http_port=values["port"],
        http_fds=values["http_fd"],
        grpc_port=values["grpc_port"],
        unix_path=values["unix_path"],
        reuse_port=values["reuse_port"],
        wait_until_ready=values["wait_until_ready"],
        api_keys=(*values["api_key"], *keys),
        request_timeout_s=values["request_timeout"],
        open_metrics=values["open_metrics"],
        any_model_name=values["any_model_name"],
        allowed_origins=values["allowed_origins"],
        page=values["page"],
        root_path=values["root_path"],
        max_body_bytes=values["max_body_size"],
        ping_interval_s=values["ping_interval"],
        smg=values["smg"],
        response_store_bytes=values["response_store_size"],
        response_ttl_s=values["response_ttl"],
        shutdown_timeout_s=values["shutdown_timeout"],
        drain_delay_s=values["drain_delay"],
        metrics_dir=values["metrics_dir"],
        max_rank_losses=values["max_rank_losses"],
        security=security_of(values),
        front=front,
    )
    return run(run_gateway(options))

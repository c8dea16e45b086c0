"""What `muster serve` was asked to do, parsed; and which combinations make no sense."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class FlagCombinationError(ValueError):
    """Flags that contradict each other. The message names each flag, its value and the fix."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The flags of `muster serve` by name; None means "not given". Durations in seconds, sizes in bytes."""

    model: str | None
    model_cache: Path
    served_model_name: tuple[str, ...]
    dtype: str
    device: str
    kernels: str
    load_format: str
    seed: int
    max_model_len: int | None
    data_parallel_size: int
    data_parallel_size_local: int | None
    data_parallel_start_rank: int | None
    data_parallel_address: str | None
    data_parallel_bind_address: str | None
    data_parallel_rpc_port: int
    headless: bool
    deployment_id: str
    engine_host: str | None
    engine_advertise_host: str | None
    api_server_count: int | None
    host: str
    port: int
    grpc_port: int
    api_key: tuple[str, ...]
    request_timeout: float | None
    open_metrics: bool
    any_model_name: bool
    allowed_origins: tuple[str, ...]
    root_path: str
    max_body_size: int
    ping_interval: float
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int | None
    kv_cache_memory: int | None
    enable_prefix_caching: bool
    max_num_queued_reqs: int
    num_threads: int | None
    shutdown_timeout: float
    ready_timeout: float
    heartbeat_interval: float
    heartbeat_timeout: float
    runtime_dir: Path | None
    log_level: str
    log_format: str

    @property
    def num_local_ranks(self) -> int:
        local = self.data_parallel_size_local
        return self.data_parallel_size if local is None else local

    @property
    def num_gateways(self) -> int:
        if self.headless:
            return 0
        return 1 if self.api_server_count is None else self.api_server_count

    @property
    def head_address(self) -> str:
        return self.data_parallel_address or "127.0.0.1"

    @property
    def local_ranks(self) -> tuple[int | None, ...]:
        """Ranks of this node's engines; None where the head shall choose."""
        if self.headless and self.data_parallel_start_rank is None:
            everything = self.num_local_ranks == self.data_parallel_size
            return tuple(range(self.num_local_ranks)) if everything else (None,) * self.num_local_ranks
        first = self.data_parallel_start_rank or 0
        return tuple(range(first, first + self.num_local_ranks))


def check(options: ServeOptions) -> None:
    """Raises FlagCombinationError for the first contradiction found."""
    _check_ranks(options)
    if options.headless:
        _check_headless(options)
    else:
        _check_head_node(options)
        _check_ports(options)
    _check_sizes(options)


def _check_ranks(options: ServeOptions) -> None:
    size, local = options.data_parallel_size, options.num_local_ranks
    if local > size:
        raise FlagCombinationError(
            f"--data-parallel-size-local {local} is more than --data-parallel-size {size}: "
            f"raise --data-parallel-size to {local} or more, or lower --data-parallel-size-local"
        )
    start = options.data_parallel_start_rank
    if start is not None and start + local > size:
        raise FlagCombinationError(
            f"--data-parallel-start-rank {start} with --data-parallel-size-local {local} reaches rank "
            f"{start + local - 1}, but --data-parallel-size {size} ends at rank {size - 1}: lower one of the first two"
        )


def _check_headless(options: ServeOptions) -> None:
    if options.num_local_ranks < 1:
        raise FlagCombinationError(
            "--headless with --data-parallel-size-local 0 would run nothing: give 1 or more local ranks"
        )
    if options.api_server_count:
        raise FlagCombinationError(
            f"--headless with --api-server-count {options.api_server_count}: a headless node runs no gateways; "
            "leave --api-server-count out here and give it on the head node"
        )
    if options.data_parallel_address is None:
        raise FlagCombinationError(
            "--headless needs --data-parallel-address: give the address of the node that runs the head"
        )
    if options.data_parallel_rpc_port == 0:
        raise FlagCombinationError(
            "--headless with --data-parallel-rpc-port 0: give the port on which the head really listens; it says so"
        )
    if options.data_parallel_bind_address is not None:
        raise FlagCombinationError(
            f"--headless with --data-parallel-bind-address {options.data_parallel_bind_address}: "
            "a headless node runs no head that could listen there; leave it out, or mean --engine-host"
        )


def _check_head_node(options: ServeOptions) -> None:
    start = options.data_parallel_start_rank
    if start:
        raise FlagCombinationError(
            f"--data-parallel-start-rank {start} without --headless would start a second head, and the head's node "
            "has the first ranks: add --headless here, or leave --data-parallel-start-rank out"
        )
    if options.api_server_count == 0:
        raise FlagCombinationError(
            "--api-server-count 0 without --headless: nobody would answer requests; give 1 or more, or --headless"
        )
    for flag, value in (
        ("--engine-host", options.engine_host),
        ("--engine-advertise-host", options.engine_advertise_host),
    ):
        if value is not None:
            raise FlagCombinationError(
                f"{flag} {value} without --headless: gateways reach the engines of the head's node "
                f"over Unix sockets; leave {flag} out"
            )
    if options.heartbeat_timeout < 2 * options.heartbeat_interval:
        raise FlagCombinationError(
            f"--heartbeat-timeout {options.heartbeat_timeout:g} is less than twice --heartbeat-interval "
            f"{options.heartbeat_interval:g}: one late heartbeat would lose a rank; raise --heartbeat-timeout"
        )


def _check_ports(options: ServeOptions) -> None:
    used: dict[int, str] = {}
    for flag, port in (
        ("--port", options.port),
        ("--grpc-port", options.grpc_port),
        ("--data-parallel-rpc-port", options.data_parallel_rpc_port),
    ):
        if port and port in used:
            raise FlagCombinationError(f"{used[port]} and {flag} are both {port}: give each its own port")
        used[port] = flag


def _check_sizes(options: ServeOptions) -> None:
    if options.num_blocks is not None and options.kv_cache_memory is not None:
        raise FlagCombinationError(
            f"--num-blocks {options.num_blocks} and --kv-cache-memory {options.kv_cache_memory} "
            "both size the KV cache: give one of them"
        )
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise FlagCombinationError(
            f"--max-num-batched-tokens {options.max_num_batched_tokens} is less than --max-num-seqs "
            f"{options.max_num_seqs}: a step needs a token for each sequence; raise the first or lower the second"
        )
    if options.num_blocks is not None and options.max_model_len is not None:
        room = options.num_blocks * options.block_size
        if room < options.max_model_len:
            raise FlagCombinationError(
                f"--num-blocks {options.num_blocks} with --block-size {options.block_size} holds {room} tokens, less "
                f"than --max-model-len {options.max_model_len}: raise --num-blocks or lower --max-model-len"
            )

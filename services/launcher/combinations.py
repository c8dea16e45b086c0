"""Which flags of `muster serve` contradict each other."""

from __future__ import annotations

from services.launcher.options import ServeOptions
from services.rpc.listening import is_loopback


class FlagCombinationError(ValueError):
    """Flags that contradict each other. The message names each flag, its value and the fix."""


def check(options: ServeOptions) -> None:
    """Raises FlagCombinationError for the first contradiction found."""
    _check_scope(options)
    _check_ranks(options)
    _check_most_ranks(options)
    if options.headless:
        _check_headless(options)
    else:
        _check_serving_node(options)
        _check_ports(options)
    if options.runs_head:
        _check_head_node(options)
    else:
        _check_other_node(options)
    _check_sizes(options)
    _check_expert_parallel(options)
    if options.quantization != "none" and options.device == "cuda":
        raise FlagCombinationError(
            f"--quantization {options.quantization} with --device cuda: weights are quantised for CPUs only, on a GPU "
            "they would be held in full again; give --device cpu, or leave --quantization out"
        )
    if options.attention_backend == "flash" and options.device == "cpu":
        raise FlagCombinationError(
            "--attention-backend flash with --device cpu: flash attention runs on GPUs only; leave one of the two out"
        )


def _check_scope(options: ServeOptions) -> None:
    if options.data_parallel_hybrid_lb and options.is_external:
        raise FlagCombinationError(
            f"{_external_flag(options)} with --data-parallel-hybrid-lb: gateways serve either one rank or their node's "
            "ranks; leave one of the two out"
        )
    if options.data_parallel_hybrid_lb:
        _check_hybrid(options)
    if options.is_external:
        _check_external(options)


def _check_hybrid(options: ServeOptions) -> None:
    size, local = options.data_parallel_size, options.data_parallel_size_local
    if options.headless:
        raise FlagCombinationError(
            "--headless with --data-parallel-hybrid-lb: a headless node has no gateways that could serve its ranks; "
            "leave --headless out to serve them here, or --data-parallel-hybrid-lb to serve them from the head's node"
        )
    if local is None:
        raise FlagCombinationError(
            "--data-parallel-hybrid-lb needs --data-parallel-size-local: "
            f"say how many of the {size} ranks (--data-parallel-size) this node has"
        )
    if local == 0:
        raise FlagCombinationError(
            "--data-parallel-hybrid-lb with --data-parallel-size-local 0: gateways serve their node's ranks, and here "
            "are none; give 1 or more, or leave --data-parallel-hybrid-lb out to serve all ranks from here"
        )
    if local == size:
        raise FlagCombinationError(
            f"--data-parallel-hybrid-lb with --data-parallel-size-local {local} of --data-parallel-size {size}: "
            "this node has all ranks; leave --data-parallel-hybrid-lb out"
        )


def _check_external(options: ServeOptions) -> None:
    flag, size, rank = _external_flag(options), options.data_parallel_size, options.data_parallel_rank
    if options.headless:
        raise FlagCombinationError(
            f"--headless with {flag}: a headless node has no gateway that could serve its rank; "
            f"leave --headless out, or give --data-parallel-start-rank {rank or 0} --data-parallel-size-local 1 instead"
        )
    if rank is None:
        raise FlagCombinationError(
            f"--data-parallel-external-lb needs --data-parallel-rank: say which of the ranks 0 to {size - 1} runs here"
        )
    if size == 1:
        raise FlagCombinationError(
            f"{flag} with --data-parallel-size 1: there are no other ranks to balance with; "
            "give the number of all ranks as --data-parallel-size, or leave the flag out"
        )
    if rank >= size:
        raise FlagCombinationError(
            f"--data-parallel-rank {rank} does not exist with --data-parallel-size {size}: give 0 to {size - 1}"
        )
    if options.data_parallel_size_local not in {None, 1}:
        raise FlagCombinationError(
            f"{flag} with --data-parallel-size-local {options.data_parallel_size_local}: an external load balancer "
            "sees one rank per node; leave --data-parallel-size-local out, or use --data-parallel-hybrid-lb"
        )
    if options.data_parallel_start_rank is not None:
        raise FlagCombinationError(
            f"{flag} with --data-parallel-start-rank {options.data_parallel_start_rank}: both name this node's rank; "
            "leave --data-parallel-start-rank out"
        )


def _external_flag(options: ServeOptions) -> str:
    rank = options.data_parallel_rank
    return "--data-parallel-external-lb" if rank is None else f"--data-parallel-rank {rank}"


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


def _check_most_ranks(options: ServeOptions) -> None:
    most = options.max_data_parallel_size
    if most is None:
        return
    if most < options.data_parallel_size:
        raise FlagCombinationError(
            f"--max-data-parallel-size {most} is less than --data-parallel-size {options.data_parallel_size}: "
            "raise the first or lower the second"
        )
    if options.enable_expert_parallel:
        raise FlagCombinationError(
            f"--max-data-parallel-size {most} with --enable-expert-parallel: each rank holds its share of the experts, "
            "so that their number is that of the start; leave one of the two out"
        )
    if options.gateway_ranks is not None:
        flag = _external_flag(options) if options.is_external else "--data-parallel-hybrid-lb"
        raise FlagCombinationError(
            f"--max-data-parallel-size {most} with {flag}: gateways that serve some of the ranks would leave "
            "later ones out; leave one of the two out"
        )
    if not options.runs_head:
        raise FlagCombinationError(
            f"--max-data-parallel-size {most} with --headless: the head's node says how many ranks there may be; "
            "give it there"
        )


def _check_headless(options: ServeOptions) -> None:
    if options.num_local_ranks < 1:
        raise FlagCombinationError(
            "--headless with --data-parallel-size-local 0 would run nothing: give 1 or more local ranks"
        )
    if options.smg:
        raise FlagCombinationError(
            "--headless with --smg: a headless node runs no gateways that the smg router could reach; leave --smg out "
            "here and give it on the head node"
        )
    if options.api_server_count:
        raise FlagCombinationError(
            f"--headless with --api-server-count {options.api_server_count}: a headless node runs no gateways; "
            "leave --api-server-count out here and give it on the head node"
        )


def _check_other_node(options: ServeOptions) -> None:
    """A node that joins the head of another one."""
    what = "--headless" if options.headless else f"a node whose first rank is {options.first_rank}"
    if options.data_parallel_address is None:
        raise FlagCombinationError(
            f"{what} needs --data-parallel-address: give the address of the node that runs the head"
        )
    if options.data_parallel_rpc_port == 0:
        raise FlagCombinationError(
            f"{what} with --data-parallel-rpc-port 0: give the port on which the head really listens; it says so"
        )
    if options.data_parallel_bind_address is not None:
        raise FlagCombinationError(
            f"{what} with --data-parallel-bind-address {options.data_parallel_bind_address}: "
            "this node runs no head that could listen there; leave it out, or mean --engine-host"
        )


def _check_serving_node(options: ServeOptions) -> None:
    start = options.data_parallel_start_rank
    if start and not options.data_parallel_hybrid_lb:
        raise FlagCombinationError(
            f"--data-parallel-start-rank {start} without --headless would start a second head, and the head's node "
            "has the first ranks: add --headless here (or --data-parallel-hybrid-lb on all nodes), "
            "or leave --data-parallel-start-rank out"
        )
    if options.api_server_count == 0:
        raise FlagCombinationError(
            "--api-server-count 0 without --headless: nobody would answer requests; give 1 or more, or --headless"
        )


def _check_head_node(options: ServeOptions) -> None:
    for flag, value in (
        ("--engine-host", options.engine_host),
        ("--engine-advertise-host", options.engine_advertise_host),
    ):
        if value is not None and options.num_local_ranks == 0:
            raise FlagCombinationError(
                f"{flag} {value} with --data-parallel-size-local 0: there are no engines here; leave {flag} out"
            )
        if value is not None and not options.is_joined_from_elsewhere:
            raise FlagCombinationError(
                f"{flag} {value} without --headless, and the head listens on {options.head_bind_address} only: no "
                "gateway of another node could learn of these engines, and those of this node reach them over Unix "
                f"sockets; leave {flag} out, or give --data-parallel-address an address that other nodes reach"
            )
    if options.heartbeat_timeout < 2 * options.heartbeat_interval:
        raise FlagCombinationError(
            f"--heartbeat-timeout {options.heartbeat_timeout:g} is less than twice --heartbeat-interval "
            f"{options.heartbeat_interval:g}: one late heartbeat would lose a rank; raise --heartbeat-timeout"
        )


def _check_expert_parallel(options: ServeOptions) -> None:
    limit_s = options.shrink_expert_group_after
    if limit_s is not None and not options.enable_expert_parallel:
        raise FlagCombinationError(
            f"--shrink-expert-group-after {limit_s:g} without --enable-expert-parallel: each rank has all experts and "
            "serves on without the others anyway; leave it out, or give --enable-expert-parallel"
        )
    if not options.enable_expert_parallel:
        return
    if limit_s is not None and not options.runs_head:
        raise FlagCombinationError(
            f"--shrink-expert-group-after {limit_s:g} on a node that joins another's head: that head decides for the "
            "whole group; give it on the head's node and leave it out here"
        )
    if options.kernels == "native":
        raise FlagCombinationError(
            "--enable-expert-parallel with --kernels native: the native kernels compute dense models only; leave one "
            "of the two out"
        )
    if options.security.serves_tls and not (options.runs_head and is_loopback(options.head_bind_address)):
        raise FlagCombinationError(
            f"--enable-expert-parallel with --tls-cert {options.tls_cert} over several nodes: ranks exchange tokens "
            "through torch.distributed, which cannot encrypt them; keep all ranks on one node, or leave --tls-cert out "
            "and give the nodes a network of their own"
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

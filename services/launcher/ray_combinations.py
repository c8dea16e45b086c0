"""Which flags of `muster serve` contradict `--data-parallel-backend ray`, or mean nothing without it."""

from __future__ import annotations

from services.launcher.options import ServeOptions

_BACKEND = "--data-parallel-backend ray"


class FlagCombinationError(ValueError):
    """Flags that contradict each other. The message names each flag, its value and the fix."""


def check_ray(options: ServeOptions) -> None:
    """Raises FlagCombinationError for the first contradiction found."""
    if not options.uses_ray:
        for flag, value in (("--ray-address", options.ray_address), ("--ray-placement", options.ray_placement)):
            if value is not None:
                raise FlagCombinationError(
                    f"{flag} {value} with --data-parallel-backend {options.data_parallel_backend}: only ranks that Ray "
                    f"runs are placed by it; add {_BACKEND}, or leave {flag} out"
                )
        return
    _check_topology(options)
    _check_placement(options)
    if options.ray_address is not None and "://" in options.ray_address:
        raise FlagCombinationError(
            f"--ray-address {options.ray_address}: head and gateways run where this command does, so that this must be "
            "a node of the cluster; give the HOST:PORT of the cluster's head, and no Ray Client URL"
        )
    if options.enable_expert_parallel and options.security.serves_tls:
        raise FlagCombinationError(
            f"--enable-expert-parallel with --tls-cert {options.tls_cert} and {_BACKEND}: ranks exchange tokens "
            "through torch.distributed, which cannot encrypt them, over whatever nodes Ray gives "
            "them; leave one of them out"
        )


def _check_topology(options: ServeOptions) -> None:
    """One launcher has all ranks, and its gateways serve all of them."""
    for flag, is_given, why in (
        ("--headless", options.headless, "Ray starts engines on other nodes; run one command for all, without it"),
        (
            "--data-parallel-hybrid-lb",
            options.data_parallel_hybrid_lb,
            "gateways run on this node only and serve all ranks; leave one of the two out",
        ),
        (
            "--data-parallel-external-lb",
            options.data_parallel_external_lb,
            "gateways run on this node only and serve all ranks; leave one of the two out",
        ),
        (
            f"--data-parallel-rank {options.data_parallel_rank}",
            options.data_parallel_rank is not None,
            "this command starts all ranks; leave one of the two out",
        ),
        (
            f"--data-parallel-start-rank {options.data_parallel_start_rank}",
            options.data_parallel_start_rank is not None,
            "this command starts all ranks; leave one of the two out",
        ),
        (
            f"--engine-host {options.engine_host}",
            options.engine_host is not None,
            "each engine listens on its own Ray node's address; leave --engine-host out",
        ),
        (
            f"--engine-advertise-host {options.engine_advertise_host}",
            options.engine_advertise_host is not None,
            "each engine is reached by its own Ray node's address; leave --engine-advertise-host out",
        ),
    ):
        if is_given:
            raise FlagCombinationError(f"{flag} with {_BACKEND}: {why}")


def _check_placement(options: ServeOptions) -> None:
    per_node, size, strategy = options.data_parallel_size_local, options.data_parallel_size, options.ray_placement
    most = options.max_data_parallel_size
    if strategy == "strict" and most is not None and most > size:
        raise FlagCombinationError(
            f"--max-data-parallel-size {most} with --ray-placement strict: ranks that stay together are placed once, "
            "so that none can be added; give --ray-placement fill or span"
        )
    if per_node is None:
        return
    if strategy != "strict":
        given = "without --ray-placement strict" if strategy is None else f"with --ray-placement {strategy}"
        raise FlagCombinationError(
            f"--data-parallel-size-local {per_node} {given}: with {_BACKEND} it says how many ranks exactly each node "
            "has; add --ray-placement strict, or leave it out"
        )
    if per_node == 0 or size % per_node:
        raise FlagCombinationError(
            f"--data-parallel-size-local {per_node} with --ray-placement strict: the {size} ranks "
            f"(--data-parallel-size) are to be in equal numbers on each node; give "
            f"a divisor of {size}, or --ray-placement fill or span"
        )

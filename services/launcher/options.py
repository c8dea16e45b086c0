"""What `muster serve` was asked to do, parsed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from services.http_front import HttpFront
from services.rpc.listening import is_loopback
from services.rpc.security import Security


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The flags of `muster serve` by name; None means "not given". Durations in seconds, sizes in bytes."""

    model: str | None
    model_cache: Path
    served_model_name: tuple[str, ...]
    dtype: str
    device: str
    attention_backend: str
    enforce_eager: bool
    max_cudagraph_capture_size: int
    gpu_memory_utilization: float
    kernels: str
    quantization: str
    load_format: str
    seed: int
    max_model_len: int | None
    data_parallel_size: int
    max_data_parallel_size: int | None
    data_parallel_size_local: int | None
    data_parallel_start_rank: int | None
    data_parallel_rank: int | None
    data_parallel_hybrid_lb: bool
    data_parallel_external_lb: bool
    data_parallel_address: str | None
    data_parallel_bind_address: str | None
    data_parallel_rpc_port: int
    enable_expert_parallel: bool
    shrink_expert_group_after: float | None
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
    page: bool
    root_path: str
    max_body_size: int
    ping_interval: float
    smg: bool
    response_store_size: int
    response_ttl: float
    api_key_file: Path | None
    queue_timeout: float | None
    uds: Path | None
    ssl_certfile: Path | None
    ssl_keyfile: Path | None
    allowed_methods: tuple[str, ...]
    allowed_headers: tuple[str, ...]
    allow_credentials: bool
    reasoning_parser: str
    tool_call_parser: str
    otlp_traces_endpoint: str | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int | None
    kv_cache_memory: int | None
    enable_prefix_caching: bool
    max_num_queued_reqs: int
    num_threads: int | None
    num_spare_threads: int | None
    shutdown_timeout: float
    ready_timeout: float
    heartbeat_interval: float
    heartbeat_timeout: float
    head_timeout: float | None
    max_early_deaths: int
    on_given_up: str
    max_rank_losses: int
    runtime_dir: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    tls_client_auth: bool
    tls_server_name: str | None
    cluster_token_file: Path | None
    grpc_reflection: bool
    log_level: str
    log_format: str

    @property
    def security(self) -> Security:
        """The doors of every process of this node."""
        return Security(
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_ca=self.tls_ca,
            tls_client_auth=self.tls_client_auth,
            tls_server_name=self.tls_server_name,
            cluster_token_file=self.cluster_token_file,
            reflection=self.grpc_reflection,
        )

    @property
    def http_front(self) -> HttpFront:
        """How this node's gateways serve HTTP."""
        return HttpFront(**{field.name: getattr(self, field.name) for field in fields(HttpFront)})

    @property
    def needs_key(self) -> bool:
        return bool(self.api_key) or self.api_key_file is not None

    @property
    def num_local_ranks(self) -> int:
        local = self.data_parallel_size_local
        if self.is_external:
            return 1
        return self.data_parallel_size if local is None else local

    @property
    def max_local_ranks(self) -> int:
        """Ranks that may run here at one time: those that are added at run time run on the head's node."""
        if not self.runs_head:
            return self.num_local_ranks
        return self.num_local_ranks + self.most_ranks - self.data_parallel_size

    @property
    def most_ranks(self) -> int:
        return self.max_data_parallel_size or self.data_parallel_size

    @property
    def is_external(self) -> bool:
        """This node runs and serves one rank."""
        return self.data_parallel_external_lb or self.data_parallel_rank is not None

    @property
    def first_rank(self) -> int:
        """This node's first rank, unless the head shall choose."""
        return self.data_parallel_rank or self.data_parallel_start_rank or 0

    @property
    def runs_head(self) -> bool:
        """The node of rank 0 does, and always one without --headless, --data-parallel-hybrid-lb or a rank."""
        return not self.headless and self.first_rank == 0

    @property
    def has_ranks_elsewhere(self) -> bool:
        """This node's gateways serve ranks of other nodes too."""
        return self.runs_head and self.gateway_ranks is None and self.num_local_ranks < self.data_parallel_size

    @property
    def gateway_ranks(self) -> range | None:
        """The ranks that this node's gateways serve; None means all."""
        if self.is_external or self.data_parallel_hybrid_lb:
            return range(self.first_rank, self.first_rank + self.num_local_ranks)
        return None

    @property
    def num_gateways(self) -> int:
        if self.headless:
            return 0
        return 1 if self.api_server_count is None else self.api_server_count

    @property
    def head_address(self) -> str:
        return self.data_parallel_address or "127.0.0.1"

    @property
    def head_bind_address(self) -> str:
        """Where the head of this node listens."""
        return self.data_parallel_bind_address or self.head_address

    @property
    def is_joined_from_elsewhere(self) -> bool:
        """This node runs the head, and engines and gateways of other nodes reach it."""
        return self.runs_head and not is_loopback(self.head_bind_address)

    @property
    def local_ranks(self) -> tuple[int | None, ...]:
        """Ranks of this node's engines; None where the head shall choose."""
        if self.headless and self.data_parallel_start_rank is None:
            everything = self.num_local_ranks == self.data_parallel_size
            return tuple(range(self.num_local_ranks)) if everything else (None,) * self.num_local_ranks
        return tuple(range(self.first_rank, self.first_rank + self.num_local_ranks))

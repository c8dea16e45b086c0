"""What a launcher takes before it starts anything: a private directory and its ports."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from services.launcher import devices, plan
from services.launcher.listening import HttpSockets, ReservedPort, address_towards, check_free, listen_http, listen_unix
from services.launcher.options import ServeOptions
from services.launcher.plan import Places
from services.launcher.runtime_directory import RuntimeDirectory

if TYPE_CHECKING:
    from services.ray.ranks import RayRanks


class Holdings:
    """Taken on entry, given back on exit.

    Entering raises ListenError, RuntimeDirectoryError or DeviceAssignmentError, which name the flag and the fix.
    """

    def __init__(
        self,
        options: ServeOptions,
        model_path: Path,
        served_model_names: tuple[str, ...],
        ray: RayRanks | None = None,
    ) -> None:
        self._options = options
        self._ray = ray  # it has the engines' threads and GPUs
        self._model_path = model_path
        self._names = served_model_names
        self._http: HttpSockets | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Holdings:
        with ExitStack() as taking:
            self.places = self._take(taking)
            self._resources = taking.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def http_port(self) -> int:
        return self._http.port if self._http is not None else 0

    def close_http(self) -> None:
        """After this, and once the gateways close theirs, connections are refused instead of kept waiting."""
        if self._http is not None:
            self._http.close()

    def _take(self, taking: ExitStack) -> Places:
        options = self._options
        if self._ray is not None:
            assignment, threads = self._ray.assignment, self._ray.threads
        else:
            assignment = devices.assign(
                options.device,
                options.max_local_ranks,
                find_devices=lambda: devices.find_devices(os.environ),
                torch_has_cuda=devices.torch_is_built_for_cuda,
            )
            threads = plan.threads_per_rank(options, plan.num_usable_cores())
        if options.quantization != "none" and assignment.device == "cuda":
            whose = f"this node's GPUs ({', '.join(assignment.ids)})" if assignment.ids else "the Ray cluster's GPUs"
            raise devices.DeviceAssignmentError(
                f"--quantization {options.quantization} with --device {options.device}, which puts ranks on {whose}: "
                "weights are quantised for CPUs only; give --device cpu or leave --quantization out"
            )
        runtime_dir = taking.enter_context(RuntimeDirectory(options.runtime_dir))
        host = self._engine_host()
        if options.headless:
            return Places(runtime_dir, self._model_path, self._names, threads, engine_host=host, assignment=assignment)
        self._http = listen_http(options.host, options.port) if options.uds is None else listen_unix(options.uds)
        taking.callback(self._http.close)
        grpc_port = ReservedPort(options.host, options.grpc_port, flags="--host/--grpc-port")
        taking.callback(grpc_port.close)
        if options.runs_head:
            self._check_head_port_free()
        return Places(
            runtime_dir,
            self._model_path,
            self._names,
            threads,
            engine_host=host,
            http_fds=self._http.fds,
            grpc_port=grpc_port.port,
            assignment=assignment,
        )

    def _engine_host(self) -> str:
        """Where engines listen beside their Unix sockets: beyond loopback only in a deployment of several nodes."""
        options = self._options
        if options.engine_host is not None:
            return options.engine_host
        if options.runs_head:
            return options.head_bind_address if options.is_joined_from_elsewhere else "127.0.0.1"
        return address_towards(options.head_address, options.data_parallel_rpc_port)

    def _check_head_port_free(self) -> None:
        options = self._options
        head_host = options.head_bind_address
        flags = "--data-parallel-bind-address" if options.data_parallel_bind_address else "--data-parallel-address"
        check_free(head_host, options.data_parallel_rpc_port, flags=f"{flags}/--data-parallel-rpc-port")

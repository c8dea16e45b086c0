"""CUDA graphs as a recorder: the kernels of one forward pass, launched again with one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.runner.decode_graphs import Replay


class CudaGraphRecorder:
    """All graphs share one memory pool, since never two of them run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        self._pool: Any = None  # torch's handle; its type differs between releases

    def record(self, work: Replay) -> Replay:
        """Runs `work` once eagerly, then records it; it must only launch kernels, and none may depend on the host.

        The eager run lets libraries choose kernels and take workspaces for this stream, which a capture must not see.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads of the process do with CUDA meanwhile does not break the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            output = work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._pool = self._pool or graph.pool()
        return _Replay(graph, output)


class _Replay:
    """Holds the output's memory: no other graph of the pool writes there."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self._output = output

    def __call__(self) -> Tensor:
        self._graph.replay()
        return self._output

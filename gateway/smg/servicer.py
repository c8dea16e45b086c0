"""`vllm.grpc.engine.VllmEngine`: this gateway as one vLLM worker with a data-parallel rank for each of ours.

smg tokenizes, renders and detokenizes by itself, so token ids come in and go out; ranks, stop strings, continuation
after a lost rank and limits are as everywhere in this gateway. Raises the gateway's errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from muster import v1 as wire
from smg_grpc_proto import vllm_engine_pb2 as smg
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from gateway.cluster_view import ClusterView
from gateway.embedding_request import EmbeddingRequest
from gateway.grpc_request import call_facts
from gateway.ports import TextEmbedder, TextGenerator
from gateway.smg.answer import Answer
from gateway.smg.calls import Aborted, Calls
from gateway.smg.loads import Throughput, to_rows
from gateway.smg.request import to_request
from gateway.smg.tokenizer_files import SmgArchive, to_smg_archive

SERVICE_NAME: str = smg.DESCRIPTOR.services_by_name["VllmEngine"].full_name
add_to_server = vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server

_CHUNK_BYTES = 64 * 1024
_RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class SmgServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """What is not overridden here smg can do without, and is told so: KV events and profiles.

    `flush_cache` empties the prefix caches of all ranks and returns what went wrong, empty when nothing did.
    """

    def __init__(
        self,
        *,
        generator: TextGenerator,
        embedder: TextEmbedder,
        cluster: ClusterView,
        flush_cache: Callable[[], Awaitable[str]],
        product_version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generator = generator
        self._embedder = embedder
        self._cluster = cluster
        self._flush_cache = flush_cache
        self._product_version = product_version
        self._clock = clock
        self._started_s = clock()
        self._calls = Calls()
        self._throughput = Throughput()
        self._archive: tuple[bytes, SmgArchive] | None = None

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        # smg registers whoever answers, and asks for the model at once: before there is one, nobody answers.
        self._cluster.model()
        self._cluster.tokenizer()
        ready = self._cluster.ready
        return smg.HealthCheckResponse(healthy=ready, message="" if ready else "no rank serves")

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        model = self._cluster.model()
        name = model.served_model_names[0] if model.served_model_names else model.architecture
        return smg.GetModelInfoResponse(
            model_path=name,
            served_model_name=name,
            # A path that is nowhere: smg then asks for the tokenizer's files.
            tokenizer_path=f"muster-{model.fingerprint}",
            is_generation=True,
            max_context_length=model.max_model_len,
            max_req_input_len=model.max_model_len - 1,
            vocab_size=model.vocab_size,
            model_type=model.architecture,
            eos_token_ids=model.eos_token_ids,
            bos_token_id=model.bos_token_id,
            default_sampling_params_json=_recommended(model.default_sampling),
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        model = self._cluster.model()
        return smg.GetServerInfoResponse(
            active_requests=len(self._calls),
            uptime_seconds=self._clock() - self._started_s,
            server_type="muster",
            data_parallel_size=len(self._cluster.ranks()),
            block_size=model.block_size,
            model_dtype=model.dtype,
            max_num_seqs=model.max_num_seqs,
            constrained_decoding_start="first_token",
        )

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        archive = await self._smg_archive()
        for start in range(0, len(archive.data), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            last = end >= len(archive.data)
            yield common_pb2.GetTokenizerChunk(data=archive.data[start:end], sha256=archive.sha256 if last else "")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        tokenizer = self._cluster.tokenizer()
        generation = await to_request(
            request,
            call_facts(context),
            tokenizer=tokenizer,
            max_model_len=self._cluster.model().max_model_len,
            ranks=self._ranks(),
        )
        answer = Answer(generation.n, streamed=request.stream)
        call = self._calls.open(request.request_id)
        try:
            async with contextlib.aclosing(self._generator.stream(generation, tokenizer)) as events:
                while (event := await call.next(events)) is not None:
                    for response in answer.take(event):
                        yield response
        except Aborted:
            for response in answer.aborted():
                yield response
        finally:
            self._calls.close(call)

    async def Abort(self, request: Any, context: Any) -> Any:
        self._calls.abort(request.request_ids)
        return smg.AbortResponse()

    async def Embed(self, request: Any, context: Any) -> Any:
        facts = call_facts(context)
        token_ids = tuple(request.tokenized.input_ids)
        (vector,) = await self._embedder.embed(
            EmbeddingRequest(request.request_id, (token_ids,), rank=facts.rank, timeout_s=facts.timeout_s)
        )
        return smg.EmbedResponse(embedding=vector, prompt_tokens=len(token_ids), embedding_dim=len(vector))

    async def GetLoads(self, request: Any, context: Any) -> Any:
        serving = {candidate.rank for candidate in self._cluster.candidates()}
        loads = {rank: load for rank, load in self._cluster.rank_loads().items() if rank in serving}
        rows = to_rows(self._ranks(), loads, self._cluster.model(), self._throughput, self._clock())
        if request.HasField("dp_rank"):
            rows = [row for row in rows if row.dp_rank == request.dp_rank]
        return smg.GetLoadsResponse(
            timestamp=datetime.datetime.now(datetime.UTC).isoformat(),
            version=self._product_version,
            dp_rank_count=len(rows),
            loads=rows,
        )

    async def FlushCache(self, request: Any, context: Any) -> Any:
        trouble = await self._flush_cache()
        return common_pb2.FlushCacheResponse(success=not trouble, message=trouble)

    def _ranks(self) -> list[int]:
        """The global ranks in scope; smg's rank is the place in this list."""
        return sorted(self._cluster.ranks())

    async def _smg_archive(self) -> SmgArchive:
        source = self._cluster.tokenizer_archive()
        if self._archive is None or self._archive[0] is not source:
            model = self._cluster.model()
            self._archive = source, await asyncio.to_thread(to_smg_archive, source, model)
        return self._archive[1]


def _recommended(sampling: wire.DefaultSampling) -> str:
    given = {name: getattr(sampling, name) for name in _RECOMMENDED if sampling.HasField(name)}  # type: ignore[arg-type]
    # Floats of the wire are 32 bits wide: 0.2 and not 0.20000000298.
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in given.items()}
    return orjson.dumps(rounded).decode()

"""A client of Muster's gRPC services: watches the load, chats, generates on one rank, reads an error, cancels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status
from muster.v1.coordinator_pb2 import WatchLoadRequest
from muster.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from muster.v1.engine_pb2 import GenerateRequest
from muster.v1.engine_pb2_grpc import EngineServiceStub
from muster.v1.inference_pb2 import ChatMessage, ChatRequest, DetokenizeRequest, GenerationOptions, TokenizeRequest
from muster.v1.inference_pb2_grpc import InferenceServiceStub
from muster.v1.rendezvous_pb2 import GetDeploymentRequest
from muster.v1.rendezvous_pb2_grpc import RendezvousServiceStub
from muster.v1.sampling_pb2 import FinishReason, SamplingParams, StopConditions

HEAD = os.environ.get("MUSTER_HEAD", "127.0.0.1:29550")
GATEWAY = os.environ.get("MUSTER_GATEWAY", "127.0.0.1:8001")
RANK = int(os.environ.get("MUSTER_RANK", "0"))
TOKEN = os.environ.get("MUSTER_TOKEN")
METADATA = (("authorization", f"Bearer {TOKEN}"),) if TOKEN else ()
TIMEOUT_S = 60


@contextmanager
def dial(target: str) -> Iterator[grpc.Channel]:
    """TLS as the environment says: MUSTER_TLS_CA, and MUSTER_TLS_CERT with MUSTER_TLS_KEY for mutual TLS."""
    if not (authority := file_of("MUSTER_TLS_CA")):
        channel = grpc.insecure_channel(target)
    else:
        certificate, key = file_of("MUSTER_TLS_CERT"), file_of("MUSTER_TLS_KEY")
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(authority, key, certificate))
    with channel:
        yield channel


def file_of(variable: str) -> bytes | None:
    return Path(path).read_bytes() if (path := os.environ.get(variable)) else None


def watch_load(coordinator: CoordinatorServiceStub) -> None:
    """Snapshots of all ranks: at once, when something changed, and here at least every half second."""
    half_second = Duration(nanos=500_000_000)
    call = coordinator.WatchLoad(WatchLoadRequest(heartbeat_interval=half_second), timeout=TIMEOUT_S, metadata=METADATA)
    for snapshot in islice(call, 3):
        ranks = [
            f"rank {load.rank} waiting {load.stats.waiting} running {load.stats.running}" for load in snapshot.loads
        ]
        print(f"load    snapshot {snapshot.sequence}: {', '.join(ranks) or 'no rank has reported yet'}")
    call.cancel()


def chat(inference: InferenceServiceStub) -> None:
    """The text as it comes. Without the message with usage, the stream was cut off."""
    request = ChatRequest(
        messages=[ChatMessage(role="user", content="What is gravity?")],
        options=GenerationOptions(sampling=SamplingParams(temperature=0), conditions=StopConditions(max_tokens=24)),
    )
    usage = None
    print("chat    ", end="", flush=True)
    for response in inference.Chat(request, timeout=TIMEOUT_S, metadata=METADATA):
        print(response.delta.text.replace("\n", " "), end="", flush=True)
        if response.delta.finish_reason:
            reason = FinishReason.Name(response.delta.finish_reason)
        if response.HasField("usage"):
            usage = response.usage
    if usage is None:
        raise SystemExit("the answer was cut off")
    print(f"\nchat    {reason}, {usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated")


def target_of(rank: int, rendezvous: RendezvousServiceStub) -> str:
    """Where the rank serves. Unix sockets are for processes of its own host."""
    roster = rendezvous.GetDeployment(GetDeploymentRequest(), timeout=TIMEOUT_S, metadata=METADATA).roster
    targets = roster.ranks[rank].targets if rank < len(roster.ranks) else ()
    for target in targets:
        if not target.startswith("unix:"):
            return target
    raise SystemExit(f"rank {rank} does not serve")


def generate(inference: InferenceServiceStub, engine: EngineServiceStub) -> None:
    """Token ids in, token ids out, past the gateway's balancing: on this rank and no other."""
    prompt = inference.Tokenize(TokenizeRequest(text="Once upon a time"), timeout=TIMEOUT_S, metadata=METADATA)
    request = GenerateRequest(
        prompt_token_ids=prompt.token_ids,
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_tokens=8, ignore_eos=True),
    )
    token_ids: list[int] = []
    for response in engine.Generate(request, timeout=TIMEOUT_S, metadata=METADATA):
        token_ids += response.token_ids  # deltas, never cumulative
    if not response.finish_reason:
        raise SystemExit("the answer was cut off")
    text = inference.Detokenize(DetokenizeRequest(token_ids=token_ids), timeout=TIMEOUT_S, metadata=METADATA).text
    print(f"tokens  rank {RANK}: {' '.join(map(str, token_ids))} = {text!r}")
    usage = response.usage
    reason = FinishReason.Name(response.finish_reason)
    print(f"tokens  {reason}, {usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated")


def provoke_error(engine: EngineServiceStub) -> None:
    """What programs go by are status, reason and fields; messages are for people."""
    request = GenerateRequest(prompt_token_ids=[1], sampling=SamplingParams(temperature=9))
    try:
        list(engine.Generate(request, timeout=TIMEOUT_S, metadata=METADATA))
    except grpc.RpcError as error:
        print(f"error   {error.code().name}: {error.details()}")
        for detail in rpc_status.from_call(error).details:
            info, fault, retry = ErrorInfo(), BadRequest(), RetryInfo()
            if detail.Unpack(info):
                print(f"error   reason {info.reason}, domain {info.domain}")
            elif detail.Unpack(fault):
                for violation in fault.field_violations:
                    print(f"error   field {violation.field}: {violation.description}")
            elif detail.Unpack(retry):
                print(f"error   try again in {retry.retry_delay.ToTimedelta()}")


def cancel(engine: EngineServiceStub) -> None:
    """Cancelling the call aborts the request in the engine before its next step."""
    request = GenerateRequest(prompt_token_ids=[1], stop=StopConditions(max_tokens=500, ignore_eos=True))
    call = engine.Generate(request, timeout=TIMEOUT_S, metadata=METADATA)
    num_tokens = 0
    try:
        for response in call:
            num_tokens += len(response.token_ids)
            if num_tokens >= 3:
                call.cancel()
    except grpc.RpcError as error:
        print(f"cancel  {error.code().name} after {num_tokens} tokens")


def main() -> None:
    with dial(HEAD) as head, dial(GATEWAY) as gateway:
        inference = InferenceServiceStub(gateway)
        watch_load(CoordinatorServiceStub(head))
        chat(inference)
        with dial(target_of(RANK, RendezvousServiceStub(head))) as rank:
            engine = EngineServiceStub(rank)
            generate(inference, engine)
            provoke_error(engine)
            cancel(engine)


if __name__ == "__main__":
    main()

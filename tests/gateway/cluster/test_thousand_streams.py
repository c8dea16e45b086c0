"""1,000 concurrent streams through one gateway: all complete, and nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from muster import v1 as wire

from gateway.generation_request import ChoiceDelta, FinishReason, GenerationUsage
from tests.support.fake_cluster import FakeCluster, ask, fake_cluster
from tests.support.fake_engine import EngineScript, letters
from tests.support.waiting import eventually

NUM_REQUESTS = 1000
NUM_TOKENS = 10


async def one(cluster: FakeCluster, number: int) -> None:
    prompt = f"request {number}"
    text, usage, reason = "", None, None
    async for event in cluster.stream(ask(prompt, request_id=str(number), seed=number, max_tokens=NUM_TOKENS)):
        match event:
            case ChoiceDelta():
                text += event.text
                reason = event.finish_reason
            case GenerationUsage():
                usage = event
    request = wire.GenerateRequest(prompt_token_ids=prompt.encode(), sampling=wire.SamplingParams(seed=number))
    assert text == "".join(chr(letters(request, position)) for position in range(NUM_TOKENS))
    assert reason is FinishReason.LENGTH
    assert usage == GenerationUsage(len(prompt), NUM_TOKENS, 0)


async def wave(cluster: FakeCluster) -> None:
    for engine in cluster.engines:
        engine.allow(0)
    tasks = [asyncio.create_task(one(cluster, number)) for number in range(NUM_REQUESTS)]
    await eventually(
        lambda: sum(engine.num_live for engine in cluster.engines) == NUM_REQUESTS, "all run at once", timeout_s=60
    )
    for engine in cluster.engines:
        engine.allow(None)
    await asyncio.gather(*tasks)
    await cluster.settled()
    for engine in cluster.engines:
        assert engine.num_attached == 1
        assert len(engine.submitted) == NUM_REQUESTS // len(cluster.engines)
        engine.submitted.clear()


async def test_a_thousand_streams_complete_and_leave_nothing() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        await wave(cluster)
        num_tasks = len(asyncio.all_tasks())
        gc.collect()
        tracemalloc.start()
        try:
            await wave(cluster)
            gc.collect()
            after_two, _ = tracemalloc.get_traced_memory()
            await wave(cluster)
            gc.collect()
            after_three, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # The fake head's own watchers come and go one at a time.
        await eventually(lambda: len(asyncio.all_tasks()) <= num_tasks, "no task is left")
        assert after_three - after_two < 256 * 1024, (after_two, after_three)
        # Around 20 KB per running request, both ends of the wire included.
        assert peak < 64 * 1024 * 1024

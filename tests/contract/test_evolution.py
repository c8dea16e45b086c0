"""Today's gateway with yesterday's engines, and with engines that say what today's contract does not know."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from muster import v1 as wire

from gateway.generation_request import FinishReason
from gateway.ranks import RankState
from services.rpc.errors import describe
from tests.services.engine.conftest import EngineUnderTest
from tests.services.head.factories import hello, ready
from tests.services.head.harness import running_head
from tests.support.fake_cluster import ask, fake_cluster
from tests.support.fake_engine import EngineScript, says
from tests.support.later_contract import LATER_FIELD, LaterContract, with_later_fields
from tests.support.older_contract import OlderContract
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def older() -> OlderContract:
    return OlderContract()


def test_the_landed_contract_is_a_part_of_todays(older: OlderContract) -> None:
    today = {method.name for method in wire.GenerateRequest.DESCRIPTOR.file.services_by_name["EngineService"].methods}
    assert set(older.methods("muster.v1.EngineService")) <= today


async def test_yesterdays_engine_answers_todays_gateway(older: OlderContract) -> None:
    script = EngineScript(token=says("Paris."), cached_tokens=4, logprob=-0.25)
    async with fake_cluster(script, contract=older) as cluster:
        answer = await cluster.answer(ask("The capital?", logprobs=1))
        assert answer.text() == "Paris."
        assert answer.last().finish_reason is FinishReason.STOP
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (12, 7, 4)
        await cluster.settled()


async def test_an_answer_goes_on_from_one_of_yesterdays_engines_to_another(older: OlderContract) -> None:
    async with fake_cluster(EngineScript(), EngineScript(), contract=older) as cluster:
        whole = await cluster.answer(ask(request_id="whole", seed=3, max_tokens=12))
        for engine in cluster.engines:
            engine.script.steps_left = 4
        text, died = "", False
        async for event in cluster.stream(ask(request_id="cut", seed=3, max_tokens=12)):
            text += getattr(event, "text", "")
            if text and not died:
                died = True
                lost = cluster.engine_of("cut")
                next(engine for engine in cluster.engines if engine is not lost).allow(None)
                await lost.die()
        assert died
        assert text == whole.text()
        await eventually(lambda: cluster.backend.pool.num_handles == 0, "all handles are free")


@pytest.mark.parametrize("message", [wire.StepOutputs(step=3), wire.RankEntry(rank=1), wire.Hello(rank=2)])
def test_unknown_fields_are_kept_and_disturb_nobody(message: Any) -> None:
    later = type(message).FromString(message.SerializeToString() + LATER_FIELD)
    assert later.SerializeToString() == message.SerializeToString() + LATER_FIELD
    later.DiscardUnknownFields()
    assert later == message


async def test_a_finish_reason_of_a_later_contract_ends_the_answer() -> None:
    async with fake_cluster(EngineScript(token=says("a"), finish_reason=77)) as cluster:
        answer = await cluster.answer(ask())
        assert answer.text() == "a"
        assert answer.last().finish_reason is FinishReason.STOP
        await cluster.settled()


async def test_a_rank_state_of_a_later_contract_is_not_chosen() -> None:
    async with fake_cluster(EngineScript(), EngineScript()) as cluster:
        strange: Any = 77
        cluster.head.set_ranks(cluster.engines[0].roster_entry(state=strange), cluster.engines[1].roster_entry())
        view = cluster.backend.cluster
        await eventually(lambda: view.ranks()[0].state is RankState.UNKNOWN, "the gateway heard of the state")
        for _ in range(4):
            await cluster.answer(ask())
        assert not cluster.engines[0].submitted
        assert len(cluster.engines[1].submitted) == 4


async def test_head_and_engines_of_a_later_contract_serve_todays_gateway() -> None:
    script = EngineScript(token=says("Paris."), cached_tokens=4, logprob=-0.25)
    async with fake_cluster(script, contract=LaterContract()) as cluster:
        cluster.head.set_load(0, running=3)
        answer = await cluster.answer(ask("The capital?", logprobs=1, prompt_logprobs=0))
        assert answer.text() == "Paris."
        assert (answer.usage.completion_tokens, answer.usage.cached_tokens) == (7, 4)
        await eventually(lambda: cluster.backend.cluster.rank_loads()[0].running == 3, "the load was read")
        await cluster.settled()


async def test_todays_head_takes_a_later_engine() -> None:
    phase: Any = 77
    async with running_head() as head:
        engine = head.engine()
        await engine.call.write(with_later_fields(wire.RegisterRequest(hello=hello(rank=1))))
        assert (await engine.receive()).welcome.rank == 1
        progress = wire.RegisterRequest(progress=wire.Progress(phase=phase, done=1, total=2))
        await engine.call.write(with_later_fields(progress))
        roster = await head.until(lambda roster: roster.ranks[1].phase_total == 2)
        entry = roster.ranks[1]
        assert (entry.state, entry.phase) == (wire.RANK_STATE_JOINING, wire.ENGINE_PHASE_UNSPECIFIED)
        await engine.call.write(with_later_fields(wire.RegisterRequest(ready=ready())))
        assert (await engine.receive()).WhichOneof("frame") == "accepted"


async def test_todays_engine_takes_a_later_caller_and_names_what_it_cannot_do() -> None:
    method: Any = 77
    async with EngineUnderTest() as engine:
        engine.load()
        stop = wire.StopConditions(max_tokens=3)
        request = with_later_fields(wire.GenerateRequest(prompt_token_ids=[3], stop=stop))
        responses = [response async for response in engine.stub.Generate(request)]
        assert responses[-1].usage.completion_tokens == 3
        inputs = [wire.TokenSequence(token_ids=[1])]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await engine.stub.Embed(wire.EmbedRequest(inputs=inputs, pooling=method))
        assert describe(caught.value).violations[0].field == "pooling"

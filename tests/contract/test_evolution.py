"""Today's gateway with yesterday's engines, and with engines that say what today's contract does not know."""

from __future__ import annotations

from typing import Any

import pytest
from muster import v1 as wire

from gateway.generation_request import FinishReason
from gateway.ranks import RankState
from tests.support.fake_cluster import ask, fake_cluster
from tests.support.fake_engine import EngineScript, says
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


# A field that this contract does not have: number 1000, three bytes.
LATER_FIELD = bytes([0xC2, 0x3E, 0x03]) + b"new"


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

"""Experts spread over ranks: the tokens are those of one rank, whoever has work and whenever it comes."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.parallel.placement import ExpertPlacement
from engine.request import Request, SamplingParams, StopConditions
from tests.support.lockstep_group import Group, group_of_processes, group_of_threads, pause_between
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import TINY_CONFIG, tiny_config, tiny_state, write_huggingface_directory

NUM_REQUESTS = 8


def _request(name: str, seed: int) -> tuple[Request, int]:
    """A request whose length and output are a function of `seed`; with the number of its tokens."""
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 60, (1,), generator=generator))
    num_tokens = int(torch.randint(1, 25, (1,), generator=generator))
    prompt = tuple(torch.randint(0, 256, (length,), generator=generator).tolist())
    stop = StopConditions(max_tokens=num_tokens, ignore_eos=True)
    return Request(name, prompt, sampling=SamplingParams(temperature=0.0), stop=stop), num_tokens


def _expected(architecture: str, num_requests: int) -> dict[str, list[int]]:
    config = tiny_config(architecture)
    naive = NaiveModel(config, tiny_state(config))
    expected = {}
    for seed in range(num_requests):
        request, num_tokens = _request(str(seed), seed)
        expected[str(seed)] = naive.generate(request.prompt_token_ids, num_tokens)
    return expected


def _submit_at_random_times(group: Group, num_requests: int, seed: int, longest_s: float = 0.02) -> None:
    generator = random.Random(seed)
    for number in range(num_requests):
        pause_between(generator, longest_s)
        group.submit(generator.randrange(group.size), _request(str(number), number)[0])


@pytest.mark.parametrize(
    ("architecture", "size"), [("mixtral", 2), ("mixtral", 3), ("qwen3_moe", 2), ("qwen3_moe", 3), ("qwen2_moe", 2)]
)
def test_tokens_are_those_of_one_rank(architecture: str, size: int, tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path, tiny_config(architecture))
    with group_of_threads(directory, size) as (group, ranks):
        _submit_at_random_times(group, NUM_REQUESTS, seed=size)
        group.wait(lambda: len(group.finished) == NUM_REQUESTS)
        group.wait_idle()
        assert group.tokens == _expected(architecture, NUM_REQUESTS)
        totals = [rank.lockstep.totals for rank in ranks]
        assert len({total.steps for total in totals}) == 1, "the ranks have not stepped together"
        assert any(total.dummy_steps for total in totals), "nobody was idle while others worked"
        assert all(total.bytes_sent > 0 for total in totals)
        assert sum(end.steps for end in group.ended) == totals[0].steps


def test_an_idle_rank_computes_for_the_others(tmp_path: Path) -> None:
    """All requests go to one rank; the others' steps are dummies, all of them, and it needs their experts."""
    directory = write_huggingface_directory(tmp_path, tiny_config("mixtral"))
    with group_of_threads(directory, 3) as (group, ranks):
        for number in range(4):
            group.submit(1, _request(str(number), number)[0])
        group.wait(lambda: len(group.finished) == 4)
        group.wait_idle()
        assert group.tokens == _expected("mixtral", 4)
        assert [rank.lockstep.totals.dummy_steps > 0 for rank in ranks] == [True, False, True]
        steps = ranks[1].lockstep.totals.steps
        assert ranks[0].lockstep.totals.dummy_steps == ranks[2].lockstep.totals.dummy_steps == steps
        config = tiny_config("mixtral")
        num_layers = config.num_layers
        # Each exchange of an idle rank sends the counts of other members' experts, and answers what it was asked.
        assert ranks[0].exchange.bytes_sent > steps * num_layers * 5 * 8


def test_each_rank_has_its_share_of_the_experts(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    assert config.experts is not None
    directory = write_huggingface_directory(tmp_path, config)
    with group_of_threads(directory, 3) as (_, ranks):
        owned = [rank.exchange.placement.own(config.experts.num_experts) for rank in ranks]
    assert owned == [range(4), range(4, 7), range(7, 10)]


def test_processes_form_a_group_and_form_it_again(tmp_path: Path) -> None:
    """Three processes, ports that nobody chose beforehand; then one is killed, and one stops without a word."""
    directory = write_huggingface_directory(tmp_path, tiny_config("qwen3_moe"))
    expected = _expected("qwen3_moe", NUM_REQUESTS)
    with group_of_processes(directory, 3) as (group, processes):
        _submit_at_random_times(group, NUM_REQUESTS, seed=0)
        group.wait(lambda: len(group.finished) == NUM_REQUESTS)
        group.wait_idle()
        assert group.tokens == expected
        for epoch, (signal_number, victim) in enumerate([(signal.SIGKILL, 0), (signal.SIGSTOP, 2)], start=2):
            group.forget_requests()
            survivors = [rank for rank in range(3) if rank != victim]
            for number in range(NUM_REQUESTS):
                group.submit(survivors[number % 2], _request(str(number), number)[0])
            group.wait(lambda: any(group.tokens.values()))
            processes[victim].end(signal_number)
            assert not group.waves.is_formed
            processes[victim] = group.replace(directory, victim)
            group.wait_formed(epoch)
            group.wait(lambda: len(group.finished) == NUM_REQUESTS)
            assert group.tokens == expected, "a request noticed that its group was formed anew"


def test_groups_that_break_at_any_time(tmp_path: Path) -> None:
    """Six times in mid-wave one rank's group breaks; all regroup, and every answer is as if nothing had happened."""
    directory = write_huggingface_directory(tmp_path, tiny_config("mixtral"))
    generator = random.Random(1)
    with group_of_threads(directory, 3) as (group, ranks):
        for number in range(NUM_REQUESTS):
            group.submit(number % 3, _request(str(number), number)[0])
        for epoch in range(1, 7):
            group.wait_formed(epoch)
            steps = ranks[0].lockstep.totals.steps
            group.wait(lambda steps=steps: ranks[0].lockstep.totals.steps > steps or _all_done(group))  # type: ignore[misc]
            ranks[generator.randrange(3)].lockstep.interrupt(group.waves.epoch, "the test wants it so")
            if _all_done(group):
                break
        group.wait(lambda: _all_done(group))
        assert group.tokens == _expected("mixtral", NUM_REQUESTS)
        assert group.waves.epoch > 2


def test_experts_are_spread_anew_over_fewer_and_over_more_ranks(tmp_path: Path) -> None:
    """In mid-answer: from three ranks to two, and back to three."""
    directory = write_huggingface_directory(tmp_path, tiny_config("qwen3_moe"))
    with group_of_threads(directory, 3) as (group, ranks):
        for number in range(NUM_REQUESTS):
            group.submit(number % 2, _request(str(number), number)[0])
        group.wait(lambda: ranks[0].lockstep.totals.steps > 2)
        group.go_on_without(2)
        group.wait_formed(2)
        assert [rank.exchange.placement for rank in ranks[:2]] == [ExpertPlacement(0, 2), ExpertPlacement(1, 2)]
        steps = ranks[0].lockstep.totals.steps
        group.wait(lambda: ranks[0].lockstep.totals.steps > steps + 2 or _all_done(group))
        group.open(2)
        ranks[2].connect()
        group.wait(lambda: group.waves.present == (0, 1, 2))
        group.wait_formed(3)
        group.wait(lambda: _all_done(group))
        assert group.tokens == _expected("qwen3_moe", NUM_REQUESTS)
        assert [rank.exchange.placement.size for rank in ranks] == [3, 3, 3]


def _all_done(group: Group) -> bool:
    return len(group.finished) == NUM_REQUESTS


def test_a_group_over_ipv6(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path, tiny_config("mixtral"))
    with group_of_processes(directory, 2, host="::1") as (group, _):
        group.submit(0, _request("0", 0)[0])
        group.wait(lambda: group.finished)
        assert group.tokens == _expected("mixtral", 1)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("llama", {}, "enable_expert_parallel: .* is a dense model .llama., which has no experts to spread"),
        ("qwen2_moe", {"group_size": 7}, "the 6 experts of .* do not give each of 7 ranks one"),
    ],
)
def test_models_that_cannot_be_spread(tmp_path: Path, architecture: str, changes: dict[str, Any], message: str) -> None:
    config = TINY_CONFIG if architecture == "llama" else tiny_config(architecture)
    directory = write_huggingface_directory(tmp_path, config)
    values: dict[str, Any] = {"num_threads": 1, "num_blocks": 64, "expert_parallel": True, "group_size": 2}
    with pytest.raises(CheckpointError, match=message):
        build_engine(EngineConfig(directory, **(values | changes)))


def test_one_rank_alone_has_no_group(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path, tiny_config("mixtral"))
    built = build_engine(EngineConfig(directory, num_threads=1, num_blocks=64, expert_parallel=True))
    assert built.spread is None

"""Every parameter of sampling, as it is defined, on logits that are recomputed in full for every token.

The engine's answers must be the same whatever it does for speed: batch mates, chunks, preemption, prefix cache. Token
ids are compared exactly, logprobs closely; all in float32 on the tiny model.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.request import Constraint, ConstraintKind, Output, Request, SamplingParams, StopConditions
from engine.runner.noise import gumbel_noise, noise_key
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import EOS_TOKEN_ID, NUM_BYTES, TINY_CONFIG, tiny_state, write_huggingface_directory

NUM_TOKENS = 20
END_TOKENS = (EOS_TOKEN_ID, NUM_BYTES)
WORDS = ("yes", "no", "yes, really", "perhaps")
ON = StopConditions(NUM_TOKENS, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    """What a request asks. `choices` are its constraint."""

    sampling: SamplingParams
    stop: StopConditions = ON
    choices: tuple[str, ...] = ()


ODD = tuple(range(1, 256, 2))
FEW = tuple(range(65, 73))  # so that tokens come again, which penalties are about
PLAIN = ("greedy", "temperature")
CASES = {
    "greedy": Case(SamplingParams(temperature=0.0)),
    "temperature": Case(SamplingParams(temperature=0.7, seed=1)),
    "top_k": Case(SamplingParams(top_k=5, seed=2)),
    "top_p": Case(SamplingParams(top_p=0.6, seed=3)),
    "min_p": Case(SamplingParams(min_p=0.3, seed=4)),
    "all filters": Case(SamplingParams(temperature=1.5, top_k=60, top_p=0.9, min_p=0.05, seed=5)),
    "presence_penalty": Case(SamplingParams(temperature=0.0, presence_penalty=1.5, allowed_token_ids=FEW)),
    "frequency_penalty": Case(SamplingParams(temperature=0.0, frequency_penalty=0.8, allowed_token_ids=FEW)),
    "repetition_penalty": Case(SamplingParams(temperature=0.0, repetition_penalty=1.7, allowed_token_ids=FEW)),
    "negative penalties": Case(
        SamplingParams(seed=6, presence_penalty=-1.0, frequency_penalty=-0.5, allowed_token_ids=FEW)
    ),
    "logit_bias": Case(SamplingParams(seed=7, logit_bias={65: 3.0, 66: -100.0, 200: 2.0})),
    "allowed_token_ids": Case(SamplingParams(seed=8, allowed_token_ids=ODD)),
    "bad_words": Case(SamplingParams(temperature=0.0, allowed_token_ids=(65, 66, 67), bad_words=((65,), (66, 66)))),
    "min_tokens": Case(
        SamplingParams(seed=9, logit_bias={EOS_TOKEN_ID: 9.0, 70: 9.0}),
        StopConditions(NUM_TOKENS, min_tokens=6, stop_token_ids=frozenset({70})),
    ),
    "stop_token_ids": Case(
        SamplingParams(seed=10, logit_bias={71: 4.0}), StopConditions(NUM_TOKENS, stop_token_ids=frozenset({71}))
    ),
    "ignore_eos": Case(SamplingParams(temperature=0.0, logit_bias={EOS_TOKEN_ID: 100.0})),
    "constraint": Case(SamplingParams(seed=11), StopConditions(NUM_TOKENS), WORDS),
    "constraint and penalties": Case(
        SamplingParams(seed=12, frequency_penalty=1.0, top_p=0.9), StopConditions(NUM_TOKENS), WORDS
    ),
}


def _prompt(name: str) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(sorted(CASES).index(name))
    return tuple(torch.randint(0, 256, (21,), generator=generator).tolist())


@functools.cache
def _naive() -> NaiveModel:
    return NaiveModel(TINY_CONFIG, tiny_state())


def _edited(raw: Tensor, case: Case, prompt: tuple[int, ...], output: list[int]) -> Tensor:
    """raw: [V]. One parameter after the other, each by its definition."""
    sampling, logits = case.sampling, raw.clone()
    if sampling.allowed_token_ids:
        logits = torch.full_like(logits, -torch.inf)
        for token in sampling.allowed_token_ids:
            logits[token] = raw[token]
    for *begin, last in sampling.bad_words:
        if output[len(output) - len(begin) :] == begin:
            logits[last] = -torch.inf
    if len(output) < case.stop.min_tokens:
        logits[[*END_TOKENS, *case.stop.stop_token_ids]] = -torch.inf
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
    for token in {*prompt, *output}:
        factor = sampling.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(output):
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    if case.choices:
        allowed = _may_follow(case.choices, bytes(output))
        logits[[token for token in range(len(logits)) if token not in allowed]] = -torch.inf
    return logits


def _may_follow(choices: tuple[str, ...], text: bytes) -> set[int]:
    words = [word.encode() for word in choices]
    following = {word[len(text)] for word in words if word.startswith(text) and len(word) > len(text)}
    return following | (set(END_TOKENS) if text in words else set())


def _filtered(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """min-p, top-k, then top-p over what is left."""
    order = [token for token in logits.argsort(descending=True).tolist() if logits[token] > -torch.inf]
    shares = logits.double().softmax(dim=-1)
    order = [token for token in order if shares[token] >= sampling.min_p * shares[order[0]]]
    order = order[: sampling.top_k] if sampling.top_k else order
    total, reached = float(shares[order].sum()), 0.0
    kept: list[int] = []
    for token in order:
        if kept and sampling.top_p < 1 and reached >= sampling.top_p * total:
            break
        kept.append(token)
        reached += float(shares[token])
    result = torch.full_like(logits, -torch.inf)
    result[kept] = logits[kept]
    return result


def _choice(raw: Tensor, case: Case, prompt: tuple[int, ...], output: list[int]) -> int:
    """raw: [V]. The token that comes next."""
    logits = _edited(raw, case, prompt, output)
    if case.sampling.temperature > 0:
        logits = _filtered(logits / case.sampling.temperature, case.sampling)
        key = noise_key(case.sampling.seed, len(prompt) + len(output))
        logits = logits + gumbel_noise([key], len(logits), torch.device("cpu"))[0]
    return int(logits.argmax())


@functools.cache
def _expected(name: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Tokens and their logprobs."""
    case, prompt = CASES[name], _prompt(name)
    output: list[int] = []
    logprobs: list[float] = []
    while len(output) < NUM_TOKENS:
        raw = _naive().logits([*prompt, *output])[-1]
        logits = _edited(raw, case, prompt, output)
        if case.sampling.temperature > 0:
            logits = _filtered(logits / case.sampling.temperature, case.sampling)
            logits = (
                logits
                + gumbel_noise(
                    [noise_key(case.sampling.seed, len(prompt) + len(output))], len(logits), torch.device("cpu")
                )[0]
            )
        token = int(logits.argmax())
        output.append(token)
        logprobs.append(float(raw.log_softmax(dim=-1)[token]))
        ends = case.stop.stop_token_ids | (set() if case.stop.ignore_eos else set(END_TOKENS))
        if token in ends and len(output) >= case.stop.min_tokens:
            break
    return tuple(output), tuple(logprobs)


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface_directory(tmp_path_factory.mktemp("tiny"))


def _core(directory: Path, **changes: Any) -> EngineCore:
    values: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "num_blocks": 400, "max_model_len": 48}
    return build_engine(EngineConfig(directory, **(values | {"max_num_seqs": 32} | changes))).core


def _request(name: str) -> Request:
    case = CASES[name]
    constraint = Constraint(ConstraintKind.CHOICE, choices=case.choices) if case.choices else None
    return Request(name, _prompt(name), case.sampling, case.stop, logprobs=2, constraint=constraint)


def _assert_all_as_defined(core: EngineCore, *names: str) -> None:
    outputs: dict[str, list[Output]] = {name: [] for name in names}
    for name in names:
        core.add(_request(name))
    while core.has_work:
        for output in core.step().outputs:
            outputs[output.request_id].append(output)
        core.check()
    for name, parts in outputs.items():
        tokens, logprobs = _expected(name)
        assert tuple(token for part in parts for token in part.token_ids) == tokens, name
        entries = [entry for part in parts for entry in part.logprobs]
        assert [entry.token_id for entry in entries] == list(tokens), name
        assert [entry.logprob for entry in entries] == pytest.approx(logprobs, abs=1e-4), name


def _without(case: Case) -> Case:
    """The same with the temperature alone, and, beside penalties, the tokens that are allowed."""
    sampling = case.sampling
    kept = sampling.allowed_token_ids if sampling.allowed_token_ids == FEW else ()
    return Case(SamplingParams(sampling.temperature, seed=sampling.seed, allowed_token_ids=kept))


@pytest.mark.parametrize("name", sorted(CASES.keys() - set(PLAIN)))
def test_the_cases_differ_from_plain_ones(name: str) -> None:
    """A parameter that changes no choice would be checked by nothing."""
    case, prompt, output = CASES[name], _prompt(name), list(_expected(name)[0])
    rows = _naive().logits([*prompt, *output[:-1]])[len(prompt) - 1 :]
    choices = [
        [_choice(row, each, prompt, output[:i]) for i, row in enumerate(rows)] for each in (case, _without(case))
    ]
    assert choices[0] != choices[1]


def test_ends_are_where_the_cases_want_them() -> None:
    assert 6 <= len(_expected("min_tokens")[0]) < NUM_TOKENS
    assert len(_expected("stop_token_ids")[0]) < NUM_TOKENS
    assert len(_expected("ignore_eos")[0]) == NUM_TOKENS
    assert bytes(_expected("constraint")[0][:-1]).decode() in WORDS


def test_alone(tiny_directory: Path) -> None:
    core = _core(tiny_directory)
    for name in CASES:
        _assert_all_as_defined(core, name)


@pytest.mark.parametrize("max_num_batched_tokens", [32, 64])
def test_together_in_chunks(tiny_directory: Path, max_num_batched_tokens: int) -> None:
    core = _core(tiny_directory, max_num_batched_tokens=max_num_batched_tokens)
    _assert_all_as_defined(core, *CASES)
    _assert_all_as_defined(core, *reversed(CASES))  # prompts are in the prefix cache now


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preempted(tiny_directory: Path, prefix_caching: bool) -> None:
    core = _core(tiny_directory, num_blocks=45, block_size=4, prefix_caching=prefix_caching)
    _assert_all_as_defined(core, *CASES)
    assert core.load().preemptions_total > 0

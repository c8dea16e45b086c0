"""The sampler: what each parameter does, and that its noise is fair and nobody else's business."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.request import Request, SamplingParams, StopConditions
from engine.runner.filters import filter_logits
from engine.runner.logprobs import token_logprobs
from engine.runner.noise import gumbel_noise, noise_key
from engine.runner.sampler import Sampler
from engine.sequence import Sequence

CPU = torch.device("cpu")
VOCAB = 50
EOS = 7
NO_STOP = StopConditions()


def _sequence(
    request_id: str = "r",
    prompt: tuple[int, ...] = (1, 2, 3),
    generated: tuple[int, ...] = (),
    *,
    stop: StopConditions = NO_STOP,
    logprobs: int | None = None,
    **sampling: Any,
) -> Sequence:
    sampling = {"temperature": 0.0, **sampling}
    request = Request(request_id, prompt, SamplingParams(**sampling), stop, generated, logprobs)
    return Sequence(request, arrival=0, max_total_tokens=1000)


def _logits(num_rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randn((num_rows, VOCAB), generator=torch.Generator().manual_seed(seed)) * 3


def _sample(logits: Tensor, *sequences: Sequence) -> list[int]:
    sampler = Sampler(logits.shape[1], (EOS,), CPU)
    return [choice.token_id for choice in sampler.sample(logits, sequences)]


def _chi_square(counts: Counter[int], probabilities: Tensor, num_samples: int) -> tuple[float, float]:
    """Statistic over cells that expect at least five, and the value that fair draws exceed once in 1e6."""
    statistic, cells = 0.0, 0
    rest_count, rest_expected = 0, 0.0
    for token, probability in enumerate(probabilities.tolist()):
        expected = probability * num_samples
        if expected >= 5:
            statistic += (counts[token] - expected) ** 2 / expected
            cells += 1
        else:
            rest_count += counts[token]
            rest_expected += expected
    if rest_expected >= 5:
        statistic += (rest_count - rest_expected) ** 2 / rest_expected
        cells += 1
    freedom = cells - 1
    z = 4.75  # Wilson and Hilferty's approximation
    return statistic, freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


# --- noise ---


def test_noise_depends_on_seed_position_and_index_only() -> None:
    keys = [noise_key(seed, position) for seed in (0, 1, -1, 2**63) for position in (0, 1, 500)]
    together = gumbel_noise(keys, 1000, CPU)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], gumbel_noise([key], 1000, CPU)[0])
        assert torch.equal(together[row, :10], gumbel_noise([key], 10, CPU)[0])
    assert len({tuple(row.tolist()) for row in together}) == len(keys)


def test_noise_is_the_same_everywhere() -> None:
    """Pinned values: a change here changes the texts that users reproduce with their seeds."""
    assert noise_key(42, 10) == (4023101854, 2917964135)
    expected = [-0.449861258, 0.067705534, 0.276145428, -0.068791434]
    assert gumbel_noise([noise_key(42, 10)], 4, CPU)[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_noise_has_the_gumbel_distribution() -> None:
    noise = gumbel_noise([noise_key(seed, 3) for seed in range(40)], 50_000, CPU)
    assert bool(noise.isfinite().all())
    edges = torch.linspace(-2, 8, 41)
    cumulative = torch.exp(-torch.exp(-edges))
    observed = torch.stack([(noise <= edge).double().mean() for edge in edges])
    assert (observed - cumulative).abs().max() < 5 / math.sqrt(noise.numel())
    assert noise.max() > 12, "the tail is cut off"


@pytest.mark.parametrize("step", ["seed", "position", "index"])
def test_neighbouring_noise_is_uncorrelated(step: str) -> None:
    if step == "index":
        row = gumbel_noise([noise_key(1, 1)], 100_001, CPU)[0]
        first, second = row[:-1], row[1:]
    else:
        keys = [noise_key(i, 5) if step == "seed" else noise_key(5, i) for i in range(101)]
        rows = gumbel_noise(keys, 1000, CPU)
        first, second = rows[:-1].flatten(), rows[1:].flatten()
    correlation = torch.corrcoef(torch.stack((first, second)))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(len(first))


# --- distribution ---


@pytest.mark.parametrize(
    ("params", "over"),
    [
        ({"temperature": 1.0}, "position"),
        ({"temperature": 1.0}, "seed"),
        ({"temperature": 0.5}, "position"),
        ({"temperature": 2.0, "top_k": 10}, "position"),
        ({"temperature": 1.5, "top_p": 0.8}, "seed"),
        ({"temperature": 1.0, "min_p": 0.05}, "position"),
        ({"temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01}, "seed"),
    ],
)
def test_samples_follow_the_distribution(params: dict[str, Any], over: str) -> None:
    num_samples = 20_000
    logits = (_logits() / 3).expand(num_samples, VOCAB)
    positions = 97 if over == "position" else 1
    sequences = [
        _sequence(str(i), (1,) * (1 + i % positions), seed=i // positions, **params) for i in range(num_samples)
    ]
    counts = Counter(_sample(logits, *sequences))
    kept = filter_logits(
        logits[:1] / params["temperature"],
        [params.get("top_k", 0)],
        [params.get("top_p", 1.0)],
        [params.get("min_p", 0.0)],
    )
    probabilities = kept.softmax(dim=-1)[0]
    assert all(probabilities[token] > 0 for token in counts)
    statistic, limit = _chi_square(counts, probabilities, num_samples)
    assert statistic < limit


# --- filters ---


def _reference_filter(logits: Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Tokens kept, by the definition, for logits without ties."""
    order = logits.argsort(descending=True).tolist()
    probabilities = logits.double().softmax(dim=-1)
    order = [i for i in order if probabilities[i] >= min_p * probabilities[order[0]] * (1 - 1e-9)]
    order = order[:top_k] if top_k else order
    total, reached = sum(float(probabilities[i]) for i in order), 0.0
    kept: set[int] = set()
    for token in order:
        if kept and top_p < 1 and reached >= top_p * total:
            break
        kept.add(token)
        reached += float(probabilities[token])
    return kept


@pytest.mark.parametrize("vocab_size", [5, 300, 2000])
@pytest.mark.parametrize("scale", [0.05, 1.0, 6.0])
def test_filters_keep_what_the_definition_keeps(vocab_size: int, scale: float) -> None:
    cases = [(0, 1.0, 0.0), (1, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.5, 0.0), (0, 0.99, 0.0), (0, 0.0, 0.0)]
    cases += [(0, 1.0, 0.2), (40, 0.7, 0.0), (400, 0.9, 0.0), (9999, 0.3, 0.01), (4, 0.9, 0.5), (0, 0.95, 0.001)]
    logits = torch.randn((len(cases), vocab_size), generator=torch.Generator().manual_seed(0)) * scale
    columns = [list(column) for column in zip(*cases, strict=True)]
    filtered = filter_logits(logits, *columns)
    for row, case in enumerate(cases):
        kept = set(filtered[row].isfinite().nonzero().flatten().tolist())
        assert kept == _reference_filter(logits[row], *case), case
        assert torch.equal(filtered[row][list(kept)], logits[row][list(kept)])
        alone = filter_logits(logits[row : row + 1], *([value] for value in case))  # type: ignore[arg-type]
        assert torch.equal(alone[0], filtered[row]), "the result depends on batch mates"


def test_ties_at_the_threshold_are_kept() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]])
    assert filter_logits(logits, [2], [1.0], [0.0]).isfinite().tolist() == [[False, True, True, False, True]]
    assert filter_logits(logits, [0], [0.1], [0.0]).isfinite().tolist() == [[False, True, True, False, True]]


# --- parameters ---


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.zeros((2, VOCAB))
    logits[0, [4, 9]] = 1.0
    assert _sample(logits, _sequence("a"), _sequence("b", top_k=1, temperature=1.0)) == [4, 0]


def test_each_row_has_its_own_parameters() -> None:
    logits = _logits(4)
    best = logits.argmax(dim=-1).tolist()
    sequences = [
        _sequence("greedy"),
        _sequence("banned", logit_bias={best[1]: -100.0}),
        _sequence("seeded", temperature=1.0, seed=5),
        _sequence("allowed", allowed_token_ids=(11, 12)),
    ]
    together = _sample(logits, *sequences)
    assert together[0] == best[0]
    assert together[1] == int(logits[1].topk(2).indices[1])
    assert together[3] == (11 if logits[3, 11] > logits[3, 12] else 12)
    order = [2, 0, 3, 1]
    assert _sample(logits[order], *[sequences[i] for i in order]) == [together[i] for i in order]
    assert [_sample(logits[i : i + 1], sequences[i])[0] for i in range(4)] == together


def test_logits_are_left_alone() -> None:
    logits = _logits()
    before = logits.clone()
    _sample(logits, _sequence(logit_bias={1: 5.0}, presence_penalty=1.0, allowed_token_ids=(1, 2), temperature=1.0))
    assert torch.equal(logits, before)


def test_logit_bias_and_ids_outside_the_vocabulary() -> None:
    assert _sample(_logits(), _sequence(logit_bias={33: 100.0, VOCAB: 100.0, -1: 100.0})) == [33]
    assert _sample(_logits(), _sequence(allowed_token_ids=(8, VOCAB + 5))) == [8]


def test_penalties_by_the_definition() -> None:
    logits = _logits()
    prompt, generated = (1, 2, 2, 3), (4, 4, 5, 2)
    expected = logits[0].clone()
    for token in {*prompt, *generated}:
        expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
    for token, count in Counter(generated).items():
        expected[token] -= 0.7 * count + 0.4
    sequence = _sequence(
        prompt=prompt, generated=generated, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4
    )
    sampler = Sampler(VOCAB, (EOS,), CPU)
    penalised = sampler._penalties.apply(logits, [sequence])
    torch.testing.assert_close(penalised[0], expected)


def test_penalties_grow_with_the_output_and_end_with_the_request() -> None:
    sampler = Sampler(VOCAB, (EOS,), CPU)
    logits = torch.zeros((1, VOCAB))
    logits[0, 9] = 1.0
    sequence = _sequence(presence_penalty=2.0)
    for expected in (9, 0, 1, 2):  # each choice pushes itself below the others
        assert sampler.sample(logits, [sequence])[0].token_id == expected
        sequence.token_ids.append(expected)
    sampler.forget("r")
    sampler.forget("unknown")
    assert sampler.sample(logits, [_sequence(presence_penalty=2.0)])[0].token_id == 9


def test_each_output_token_is_counted_once() -> None:
    """Two tokens apart by 1.5: with 0.5 per occurrence the fourth repetition is the first that does not pay."""
    sampler = Sampler(VOCAB, (EOS,), CPU)
    logits = torch.zeros((1, VOCAB))
    logits[0, 9], logits[0, 4] = 5.75, 4.0
    sequence = _sequence(frequency_penalty=0.5)
    chosen = []
    for _ in range(9):
        chosen.append(sampler.sample(logits, [sequence])[0].token_id)
        sequence.token_ids.append(chosen[-1])
    assert chosen == [9, 9, 9, 9, 4, 9, 4, 9, 4]


def test_penalty_rows_do_not_mix() -> None:
    sampler = Sampler(VOCAB, (EOS,), CPU)
    logits = torch.zeros((9, VOCAB))
    sequences = [_sequence(str(i), generated=tuple(range(i)), presence_penalty=1.0) for i in range(9)]
    assert [choice.token_id for choice in sampler.sample(logits, sequences)] == list(range(9))


def test_bad_words() -> None:
    logits = torch.zeros((1, VOCAB))
    logits[0, 9] = 2.0
    logits[0, 8] = 1.0
    words = ((9,), (5, 6, 8))
    assert _sample(logits, _sequence(bad_words=words)) == [8]
    assert _sample(logits, _sequence(generated=(5, 6), bad_words=words)) == [0]
    assert _sample(logits, _sequence(generated=(6,), bad_words=words)) == [8]
    assert _sample(logits, _sequence(prompt=(5, 6), bad_words=words)) == [8], "a word begun in the prompt counts"


def test_min_tokens_holds_back_every_end() -> None:
    logits = torch.zeros((1, VOCAB))
    logits[0, [EOS, 11, 12]] = torch.tensor([3.0, 2.0, 1.0])
    stop = StopConditions(min_tokens=2, stop_token_ids=frozenset({11}))
    assert _sample(logits, _sequence(stop=stop)) == [12]
    assert _sample(logits, _sequence(stop=stop, generated=(1,))) == [12]
    assert _sample(logits, _sequence(stop=stop, generated=(1, 1))) == [EOS]


def test_a_row_is_never_left_without_a_token() -> None:
    stop = StopConditions(min_tokens=5)
    assert _sample(_logits(), _sequence(allowed_token_ids=(EOS,), stop=stop)) == [EOS]
    assert _sample(_logits(), _sequence(allowed_token_ids=(3,), bad_words=((3,),), temperature=1.0)) == [3]


@pytest.mark.parametrize("temperature", [1e-9, 1e-4, 100.0])
def test_extreme_temperatures_are_finite(temperature: float) -> None:
    token = _sample(_logits() * 100, _sequence(temperature=temperature, top_p=0.9, top_k=5))[0]
    assert 0 <= token < VOCAB


def test_half_precision_logits() -> None:
    sequence = _sequence(temperature=1.0, seed=3, top_p=0.9, frequency_penalty=0.5)
    logits = _logits().bfloat16()
    assert _sample(logits, sequence) == _sample(logits.float(), sequence)


# --- logprobs ---


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = _logits(3)
    sampler = Sampler(VOCAB, (EOS,), CPU)
    sequences = [
        _sequence("a", logprobs=3, logit_bias={30: 100.0}, temperature=0.3),
        _sequence("b"),
        _sequence("c", logprobs=0),
    ]
    biased, plain, bare = sampler.sample(logits, sequences)
    assert plain.logprobs is None
    assert biased.logprobs is not None
    assert bare.logprobs is not None
    expected = logits[0].double().log_softmax(dim=-1)
    order = expected.argsort(descending=True).tolist()
    assert biased.token_id == biased.logprobs.token_id == 30
    assert biased.logprobs.logprob == pytest.approx(float(expected[30]), abs=1e-5)
    assert biased.logprobs.rank == order.index(30) + 1
    assert biased.logprobs.top_token_ids == tuple(order[:3])
    assert biased.logprobs.top_logprobs == pytest.approx(expected[order[:3]].tolist(), abs=1e-5)
    assert bare.logprobs.rank == 1
    assert bare.logprobs.top_token_ids == ()


def test_logprobs_beyond_a_small_vocabulary() -> None:
    (entry,) = token_logprobs(torch.tensor([[0.0, 1.0]]), [0], [20])
    assert entry.rank == 2
    assert entry.top_token_ids == (1, 0)
    assert sum(math.exp(value) for value in entry.top_logprobs) == pytest.approx(1.0)


# --- without waiting for the device ---


def _patient(vocab_size: int) -> Sampler:
    """A sampler that looks at nothing before the result is taken, as on a GPU."""
    sampler = Sampler(vocab_size, (EOS,), CPU)
    sampler._looks = False
    return sampler


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("top_k", [0, 300])
def test_a_choice_that_looks_at_nothing_is_the_same(spread: float, top_k: int) -> None:
    """Flat logits have nuclei far wider than what is sorted at first: those are found out with the result."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn((6, 2000), generator=generator) * spread
    sequences = [
        _sequence(str(i), temperature=[0.0, 1.0][i % 2], top_p=0.95, top_k=top_k, seed=i, logprobs=[None, 2][i < 3])
        for i in range(6)
    ]
    expected = Sampler(2000, (EOS,), CPU).sample(logits, sequences)
    assert _patient(2000).launch(logits, sequences).result() == expected


def test_unsure_rows_are_told() -> None:
    flat, steep = torch.zeros((1, 2000)), torch.linspace(100, 0, 2000)[None]
    for logits, top_p, is_unsure in ((flat, 0.9, True), (steep, 0.9, False), (flat, 0.05, False)):
        unsure: list[Tensor] = []
        filter_logits(logits, [0], [top_p], [0.0], unsure)
        assert [bool(flag) for flag in unsure] == [is_unsure]
    unsure = []
    filter_logits(flat, [5], [0.9], [0.0], unsure)
    assert unsure == [], "five candidates are always enough"


def test_penalties_count_once_when_a_choice_is_repeated() -> None:
    sampler = _patient(2000)
    logits = torch.zeros((1, 2000))
    sequence = _sequence(generated=(4, 4), frequency_penalty=1.0, temperature=1.0, top_p=0.9)
    sampler.launch(logits, [sequence]).result()
    assert sampler._penalties.apply(logits, [sequence])[0, 4] == -2.0

"""Each native kernel against its definition, over odd shapes, on every instruction set of this machine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.native.library import Slot
from engine.native.native_model import NativeModel
from tests.support.naive_model import NaiveModel
from tests.support.native_kernels import (
    NativeStepper,
    Part,
    StateWeights,
    instruction_sets,
    native_library,
    random_state,
    shape_config,
)

DOWN = "model.layers.0.mlp.down_proj"
NUM_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 31, 32, 33, 39, 40, 47, 48, 63, 64, 70)
# From so many rows on, quantised weights are rounded to bfloat16, as are inputs.
HALVES_FROM = {"amx": 32, "avx512bf16": 32}


def _exact_inputs(num_rows: int, num_cols: int) -> Tensor:
    """Whole numbers that eight-bit codes and bfloat16 hold exactly: every run of 32 has a 127."""
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randint(-127, 128, (num_rows, num_cols), generator=generator).float()
    x[:, ::32] = 127.0
    return x


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("kind", "num_outputs", "num_inputs"),
    [
        ("Q4_0", 16, 32),
        ("Q4_0", 50, 96),
        ("Q4_1", 33, 64),
        ("Q4_1", 96, 576),
        ("Q8_0", 20, 32),
        ("Q8_0", 130, 160),
        ("Q5_0", 50, 96),
        ("Q5_1", 33, 64),
        ("Q5_1", 96, 576),
        ("F16", 7, 40),
        ("BF16", 48, 64),
        ("F32", 47, 100),
    ],
)
def test_matrix_products(isa: str, kind: str, num_outputs: int, num_inputs: int, bias: bool) -> None:
    config = shape_config(hidden_size=num_outputs, intermediate_size=num_inputs, bias=bias)
    weights = StateWeights(random_state(config), {f"{DOWN}.weight": kind} if kind != "F32" else {})
    model = NativeModel(native_library(), isa, config, weights, num_threads=1)
    matrix = weights.read(f"{DOWN}.weight").double()
    offset = weights.read(f"{DOWN}.bias").double() if bias else torch.zeros(num_outputs).double()
    for num_rows in NUM_ROWS:
        x = _exact_inputs(num_rows, num_inputs)
        actual = model.linear(Slot.DOWN, 0, x, num_outputs).double()
        expected = x.double() @ matrix.T + offset
        # bfloat16 rounds weights by up to a 256th; codes are multiplied exactly.
        rounds = kind in ("F32", "F16") or num_rows >= HALVES_FROM.get(isa, 1000)
        allowed = (x.double().abs() @ matrix.abs().T) * (2.0**-8 if rounds else 0.0) + 2.0**-18 * 127 * num_inputs
        assert (actual - expected).abs().le(allowed).all(), num_rows


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(24, 512), (50, 256), (16, 1024)])
def test_products_of_super_blocks(isa: str, kind: str, num_outputs: int, num_inputs: int) -> None:
    config = shape_config(hidden_size=num_outputs, intermediate_size=num_inputs)
    weights = StateWeights(random_state(config), {f"{DOWN}.weight": kind})
    model = NativeModel(native_library(), isa, config, weights, num_threads=1)
    matrix = weights.read(f"{DOWN}.weight").double()
    for num_rows in NUM_ROWS:
        x = _exact_inputs(num_rows, num_inputs)
        expected = x.double() @ matrix.T
        off = model.linear(Slot.DOWN, 0, x, num_outputs).double() - expected
        if kind in ("Q3_K", "Q6_K") and num_rows < HALVES_FROM.get(isa, 1000):
            # Codes and their factors are multiplied as whole numbers.
            assert off.abs().le(2.0**-18 * 127 * num_inputs).all(), num_rows
        else:
            # Nested scales are rounded to float16, Q2_K to blocks of eight bits, weights for tiles to bfloat16.
            assert off.pow(2).mean().sqrt() < (0.02 if kind == "Q2_K" else 0.005) * expected.pow(2).mean().sqrt(), (
                num_rows
            )


@pytest.mark.parametrize("isa", [isa for isa in instruction_sets() if isa == "avx512bf16"])
@pytest.mark.parametrize(("kind", "least"), [("BF16", 1), ("F32", 1), ("Q4_1", 32), ("Q6_K", 32)])
def test_products_of_pairs_give_a_row_the_same_bits_in_every_company(isa: str, kind: str, least: int) -> None:
    """One chain of additions per sum: with bfloat16 weights at any number of rows, with others from the border on."""
    config = shape_config(hidden_size=90, intermediate_size=1024, bias=True)
    kinds = {f"{DOWN}.weight": kind} if kind != "F32" else {}
    model = NativeModel(native_library(), isa, config, StateWeights(random_state(config), kinds), num_threads=2)
    x = torch.randn(70, 1024, generator=torch.Generator().manual_seed(0))
    together = model.linear(Slot.DOWN, 0, x, 90)
    for num_rows in NUM_ROWS:
        if num_rows >= least:
            assert torch.equal(model.linear(Slot.DOWN, 0, x[-num_rows:], 90), together[-num_rows:]), num_rows


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16"])
def test_embeddings_are_the_stored_rows(isa: str, kind: str) -> None:
    """Every token's row, told from all others by the logits that it leads to."""
    config = shape_config(hidden_size=256, intermediate_size=32)
    weights = StateWeights(random_state(config), {"model.embed_tokens.weight": kind})
    stepper = NativeStepper(config, weights, isa)
    state = {name: weights.read(name) for name in weights.names()}
    naive = NaiveModel(config, state)
    for token in range(config.vocab_size):
        actual, expected = stepper.logits(Part((token,), 0, 1, (0,))), naive.logits((token,))
        assert (actual - expected).pow(2).mean().sqrt() < 0.03 * expected.std()


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1", "Q6_K", "Q8_0"])
def test_few_rows_give_the_same_bits_on_every_instruction_set_and_in_every_batch(kind: str) -> None:
    """A decoding request's numbers depend neither on its batch mates (fewer than 32) nor on the machine, as long as it
    has fused multiply-adds, which the portable kernels do without."""
    config = shape_config(hidden_size=50, intermediate_size=256)
    weights = StateWeights(random_state(config), {f"{DOWN}.weight": kind})
    x = torch.randn(31, 256, generator=torch.Generator().manual_seed(0))
    results = []
    for isa in instruction_sets():
        model = NativeModel(native_library(), isa, config, weights, num_threads=1)
        results.append(model.linear(Slot.DOWN, 0, x, 50))
        for num_rows in (1, 2, 3, 6, 10, 15):
            assert torch.equal(model.linear(Slot.DOWN, 0, x[:num_rows], 50), results[-1][:num_rows])
    assert instruction_sets()[-1] == "portable"
    assert all(torch.equal(result, results[0]) for result in results[:-1])
    torch.testing.assert_close(results[-1], results[0], rtol=1e-5, atol=1e-4)


def _reference(q: Tensor, k: Tensor, v: Tensor, num_new: int, window: int | None) -> Tensor:
    """[new, N, D]: the definition, in float64. q: [S, N, D]; k, v: [S, K, D]."""
    q, k, v = q.double(), k.double(), v.double()
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[2] ** 0.5
    distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, v)[-num_new:]


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("block_size", [1, 5, 8, 16, 32])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "window"),
    [
        (1, 1, 16, None),
        (9, 3, 64, None),
        (9, 3, 64, 37),
        (4, 2, 32, 5),
        (14, 2, 64, None),
        (16, 1, 96, None),
        (32, 8, 128, 64),
        (5, 5, 80, None),
        (6, 1, 48, 33),
        (11, 1, 112, 90),
        (8, 2, 256, 40),
        (3, 3, 256, None),
    ],
)
def test_attention_over_scattered_pages(
    isa: str, block_size: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None
) -> None:
    """Decoding, prefill from the start and later chunks in one step, after their contexts were stored in steps."""
    config = shape_config(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, window=window)
    num_blocks = 4 + sum(-(-length // block_size) for length, _ in LAYOUT)
    stepper = NativeStepper(
        config, StateWeights(random_state(config)), isa, num_blocks=num_blocks, block_size=block_size
    )
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(num_blocks, generator=generator).tolist()
    parts, tensors = [], []
    for length, num_new in LAYOUT:
        blocks = tuple(order.pop() for _ in range(-(-length // block_size)))
        parts.append(Part((), length - num_new, length, blocks))
        tensors.append(
            [
                torch.randn(length, heads, head_dim, generator=generator).bfloat16()
                for heads in (num_heads, num_kv_heads, num_kv_heads)
            ]
        )
    earlier = [index for index, part in enumerate(parts) if part.begin > 0]
    stepper.attention.plan(
        stepper.batch(*[Part((), 0, parts[index].begin, parts[index].block_ids) for index in earlier])
    )
    stepper.attention.attend(
        0, *[torch.cat([tensors[index][which][: parts[index].begin] for index in earlier]) for which in range(3)]
    )
    stepper.attention.plan(stepper.batch(*parts))
    out = stepper.attention.attend(
        0, *[torch.cat([x[which][part.begin :] for part, x in zip(parts, tensors, strict=True)]) for which in range(3)]
    )
    row = 0
    for (length, num_new), (q, k, v) in zip(LAYOUT, tensors, strict=True):
        expected = _reference(q, k, v, num_new, window)
        torch.testing.assert_close(out[row : row + num_new].double(), expected, atol=0.02, rtol=0.02, msg=str(length))
        row += num_new


@pytest.mark.parametrize("isa", [isa for isa in instruction_sets() if isa != "amx"])
@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("chunk", [2, 15, 33, 64, 100])
def test_where_a_prompt_is_cut_changes_no_bit_of_its_attention(isa: str, window: int | None, chunk: int) -> None:
    """On vectors, and in chunks of more than one token, which is a decoding sequence."""
    config = shape_config(num_heads=6, num_kv_heads=2, head_dim=48, window=window)
    generator = torch.Generator().manual_seed(2)
    length = 198
    q, k, v = (torch.randn(length, heads, 48, generator=generator).bfloat16() for heads in (6, 2, 2))
    results = []
    for size in (length, chunk):
        stepper = NativeStepper(config, StateWeights(random_state(config)), isa)
        parts = []
        for begin in range(0, length, size):
            end = min(length, begin + size)
            stepper.attention.plan(stepper.batch(Part((), begin, end, tuple(range(13))[::-1])))
            parts.append(stepper.attention.attend(0, q[begin:end], k[begin:end], v[begin:end]))
        results.append(torch.cat(parts))
    assert torch.equal(*results)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(9, 3), (4, 4), (10, 5), (16, 2), (13, 1)])
def test_mates_and_threads_change_no_bit_of_decoding_attention(isa: str, num_heads: int, num_kv_heads: int) -> None:
    """With several threads, few sequences are handed out group by group, many as whole tokens."""
    config = shape_config(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=64)
    weights = StateWeights(random_state(config))
    generator = torch.Generator().manual_seed(3)
    lengths = [1 + 9 * i for i in range(8)]
    blocks = [tuple(range(i, 40, 8)) for i in range(8)]
    contexts, news = (
        [
            [torch.randn(size, heads, 64, generator=generator) for heads in (num_heads, num_kv_heads, num_kv_heads)]
            for size in sizes
        ]
        for sizes in (lengths, [1] * 8)
    )
    results = []
    for num_threads, size in ((1, 1), (1, 8), (2, 1), (2, 8)):
        stepper = NativeStepper(config, weights, isa, num_threads=num_threads)
        for length, block_ids, context in zip(lengths, blocks, contexts, strict=True):
            stepper.attention.plan(stepper.batch(Part((), 0, length, block_ids)))
            stepper.attention.attend(0, *context)
        parts = [Part((), length, length + 1, block_ids) for length, block_ids in zip(lengths, blocks, strict=True)]
        outs = []
        for begin in range(0, 8, size):
            stepper.attention.plan(stepper.batch(*parts[begin : begin + size]))
            qkv = [torch.cat([new[which] for new in news[begin : begin + size]]) for which in range(3)]
            outs.append(stepper.attention.attend(0, *qkv))
        results.append(torch.cat(outs))
    assert all(torch.equal(result, results[0]) for result in results[1:])


# Context length and new tokens of each sequence; those with one new token first, and no context of one token before.
LAYOUT = ((3, 1), (16, 1), (33, 1), (150, 1), (7, 7), (2, 2), (64, 64), (97, 17), (140, 100), (48, 16), (200, 129))

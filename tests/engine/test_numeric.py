"""The default model against transformers: same dequantised weights, float32, one thread.

transformers gets the weights from us, because its own GGUF import differs. Its greedy text is checked by
teacher forcing: if its arg max after every prefix is our next token, its greedy text is ours, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.model.checkpoint import Checkpoint
from engine.model.gguf import GgufFile
from engine.model.loading import open_checkpoint
from engine.model.weights import expected_shapes
from engine.request import Request, SamplingParams, StopConditions

pytestmark = pytest.mark.model

TEXTS = (
    "The river had been low all summer, and the children of the village walked across it on the stones.",
    "To sort a list in place, compare neighbours and swap them while anything is out of order:\n\n```python\n"
    "def sort(items):\n    for last in range(len(items) - 1, 0, -1):\n        for i in range(last):\n"
    "            if items[i] > items[i + 1]:\n                items[i], items[i + 1] = items[i + 1], items[i]\n```\n",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen; leaves are green because ",
    "In 1969, 3 people flew to the Moon; 2 of them walked on it for 2 hours and 31 minutes. ",
    "Liebe Grüße aus Köln! Das Wetter ist schön, nur der Wind könnte etwas nachlassen. ",
    "Q: What weighs more, a kilogram of iron or a kilogram of feathers?\nA: ",
)
# Lengths in tokens of the twenty prompts; the texts are repeated and cut to them.
LENGTHS = (5, 6, 8, 11, 15, 16, 17, 24, 31, 32, 33, 47, 64, 80, 100, 128, 200, 257, 384, 500)
FRANCE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
# Log-probabilities of the first token of the answer, by float32 arithmetic on the dequantised weights.
ANCHORS = {504: -1.8827, 60: -1.9648, 15319: -2.2657, 2219: -2.8064}


@pytest.fixture(scope="module")
def checkpoint(default_model_path: Path) -> Checkpoint:
    return open_checkpoint(default_model_path)


@pytest.fixture(scope="module")
def tokenizer(default_model_path: Path) -> Tokenizer:
    metadata = GgufFile(default_model_path).metadata
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={str(t): i for i, t in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([str(token) for token in tokens[:17]])
    return tokenizer


@dataclass
class Reference:
    """transformers' model with our weights."""

    model: torch.nn.Module

    def logits(self, token_ids: list[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = self.model(torch.tensor([token_ids])).logits[0]
        return logits


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> Reference:
    config = checkpoint.config
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                max_position_embeddings=config.max_position,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
                tie_word_embeddings=True,
            )
        )
    state = {name: checkpoint.weights.read(name) for name, _ in expected_shapes(config)}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    # Frequencies are no weights; they were made on the meta device and are made again.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return Reference(model)


@pytest.fixture(scope="module")
def engine(default_model_path: Path) -> BuiltEngine:
    return _build(default_model_path, "float32")


def _build(path: Path, dtype: str) -> BuiltEngine:
    return build_engine(
        EngineConfig(path, dtype=dtype, num_threads=1, max_model_len=1024, num_blocks=1200, max_num_seqs=32)
    )


def _prompts(tokenizer: Tokenizer, lengths: tuple[int, ...]) -> list[list[int]]:
    prompts = []
    for index, length in enumerate(lengths):
        ids = tokenizer.encode("".join(TEXTS[index % len(TEXTS) :] + TEXTS) * 3).ids
        assert len(ids) >= length
        prompts.append(ids[:length])
    return prompts


def _generate(
    engine: BuiltEngine, prompts: list[list[int]], num_tokens: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Greedy tokens of all prompts, batched, and the logprobs of prompts (from the second) and tokens."""
    core = engine.core
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        core.add(
            Request(
                str(index),
                tuple(prompt),
                SamplingParams(temperature=0.0),
                StopConditions(num_tokens, ignore_eos=True),
                logprobs=0,
                prompt_logprobs=0,
            )
        )
    while core.has_work:
        for output in core.step().outputs:
            index = int(output.request_id)
            tokens[index] += output.token_ids
            entries = [*(output.prompt.logprobs if output.prompt else ()), *output.logprobs]
            logprobs[index] += [entry.logprob for entry in entries if entry.logprob is not None]
    core.check()
    return tokens, logprobs


def _compare(engine: BuiltEngine, reference: Reference, prompts: list[list[int]], num_tokens: int) -> None:
    """Greedy tokens exactly, log-probabilities of every prompt token and of every generated one to 1e-3."""
    tokens, logprobs = _generate(engine, prompts, num_tokens)
    for prompt, generated, ours in zip(prompts, tokens, logprobs, strict=True):
        known = prompt + generated
        logits = reference.logits(known[:-1])
        assert logits[len(prompt) - 1 :].argmax(dim=-1).tolist() == generated
        theirs = logits.log_softmax(dim=-1).gather(1, torch.tensor(known[1:])[:, None])[:, 0]
        assert len(ours) == len(theirs)
        assert (torch.tensor(ours) - theirs).abs().max() <= 1e-3


def _logits(engine: BuiltEngine, token_ids: list[int]) -> Tensor:
    """[tokens, V] raw logits of one sequence, by the parts that the engine is made of."""
    from engine.batch import Batch, Scheduled
    from engine.runner.batch_tensors import BatchTensors
    from engine.sequence import Sequence

    runner = engine.core._runner
    model, attention = runner._model, runner._attention  # type: ignore[attr-defined]
    sequence = Sequence(Request("logits", tuple(token_ids)), arrival=0, max_total_tokens=1024)
    sequence.block_table.block_ids = list(range(-(-len(token_ids) // engine.block_size)))
    batch = Batch(step=0, scheduled=(Scheduled(sequence, len(token_ids)),))
    with torch.inference_mode():
        tensors = BatchTensors.build(batch, engine.block_size, torch.device("cpu"))
        attention.plan(tensors.attention)
        logits: Tensor = model.logits(model.forward(tensors.token_ids, tensors.positions, attention))
    engine.core.reset_prefix_cache()  # the blocks were written behind its back
    return logits


def test_three_prompts_equal_transformers(engine: BuiltEngine, reference: Reference, tokenizer: Tokenizer) -> None:
    prompts = _prompts(tokenizer, (5, 17, 64))
    for prompt in prompts:
        assert (_logits(engine, prompt) - reference.logits(prompt)).abs().max() <= 1e-3
    _compare(engine, reference, prompts, 24)


@pytest.mark.slow
def test_twenty_prompts_equal_transformers(engine: BuiltEngine, reference: Reference, tokenizer: Tokenizer) -> None:
    prompts = _prompts(tokenizer, LENGTHS)
    for prompt in prompts:
        assert (_logits(engine, prompt) - reference.logits(prompt)).abs().max() <= 1e-3
    _compare(engine, reference, prompts, 200)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.005), ("float16", 0.05), ("bfloat16", 0.3)])
def test_anchor_logprobs(
    default_model_path: Path, engine: BuiltEngine, tokenizer: Tokenizer, dtype: str, tolerance: float
) -> None:
    prompt = tokenizer.encode(FRANCE).ids
    assert len(prompt) == 37
    built = engine if dtype == "float32" else _build(default_model_path, dtype)
    logprobs = _logits(built, prompt)[-1].float().log_softmax(dim=-1)
    for token_id, expected in ANCHORS.items():
        assert float(logprobs[token_id]) == pytest.approx(expected, abs=tolerance)


def test_the_capital_of_france(engine: BuiltEngine, tokenizer: Tokenizer) -> None:
    (tokens,), _ = _generate(engine, [tokenizer.encode(FRANCE).ids], 8)
    assert tokens == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert tokenizer.decode(tokens) == "The capital of France is Paris."


def test_facts(engine: BuiltEngine) -> None:
    facts = engine.facts
    assert (facts.architecture, facts.quantization, facts.vocab_size) == ("llama", "Q4_1", 49152)
    assert facts.num_parameters == 134_515_008
    assert facts.eos_token_ids == (2, 0)
    assert facts.bos_token_id == 1

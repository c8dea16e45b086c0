"""What is known about a loaded model; the part of start-up's result that others are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    """The checkpoint's own recommendations; None where it makes none."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A loaded model as the contract's ModelInfo describes it.

    `fingerprint` covers the checkpoint's structure, samples of every tensor, the dtype and a quantisation on load, so
    that two ranks with equal fingerprints compute equal logits up to the arithmetic of the machine.
    """

    architecture: str
    dtype: str
    quantization: str  # the most common type of the stored matrices, or int8, int4: made on load; empty: neither
    vocab_size: int  # rows of the output matrix
    max_model_len: int  # prompt plus output, in tokens
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    num_parameters: int
    fingerprint: str
    embedding_size: int  # length of the vectors that pooling gives
    default_sampling: DefaultSampling = DefaultSampling()
    num_experts: int = 0  # of a layer with a mixture of experts; 0: a dense model

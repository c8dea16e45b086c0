"""The transformer and its attention in native code, behind the same calls as the torch ones.

Letters as in engine.model.llama: T tokens, H hidden, N and K heads, D head dimension, R rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend, AttentionBatch
from engine.attention.kv_cache import KvCache
from engine.model.config import ModelConfig
from engine.model.layers import RmsNorm
from engine.model.quantise import Quantise
from engine.model.rope import inverse_frequencies
from engine.model.weights import StoredMatrix, WeightSource, float_matrix, stored_matrix
from engine.native.library import TYPE_IDS, Decode, Norm, Plan, Shape, Slot
from engine.native.quantise import native_quantise
from engine.runner.decode_rows import DecodeRows

_CPU = torch.device("cpu")
_MAX_GROUP = 16  # query heads of a key/value head, the lanes of a register


class NativeModel:
    """Weights, buffers and threads of one native model. Calls belong to one thread at a time."""

    dtype = torch.bfloat16
    device = _CPU

    def __init__(
        self,
        library: ctypes.CDLL,
        instruction_set: str,
        config: ModelConfig,
        weights: WeightSource,
        *,
        num_threads: int,
        num_spare_threads: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Loads all weights. `progress` is called with layers loaded and their number.

        `num_spare_threads` compute beside `num_threads` while their cores are idle, and rest while others need them.
        """
        reason = why_not(config)
        if reason is not None:
            raise ValueError(reason)
        self.config = config
        self.instruction_set = instruction_set
        self._library = library
        self._quantise = native_quantise(library, num_threads)
        frequencies = inverse_frequencies(config).numpy()
        shape = Shape(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.sliding_window or 0,
            norm_eps=config.rms_norm_eps,
        )
        self._handle: int | None = library.muster_model_new(
            shape,
            instruction_set.encode(),
            num_threads,
            num_spare_threads,
            frequencies.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        )
        if self._handle is None:
            raise MemoryError(f"the native model with the kernels {instruction_set!r} could not be made")
        self._logits = torch.empty(0, config.vocab_size)
        self._decode = Decode()
        self._decode_addresses = (0, 0)  # of which rows, in which of their allocations, `_decode` holds
        self._norm = RmsNorm(weights.read("model.norm.weight").float(), config.rms_norm_eps)
        self._load(weights, progress)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._library.muster_model_free(self._handle)
            self._handle = None

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """token_ids, positions: [T] int64. Returns the last layer's output before the final norm, [T, H] float32.

        `attention` is a NativeAttention of this model and has planned this step.
        """
        if not isinstance(attention, NativeAttention):
            raise TypeError(f"attention: the native model attends by itself, not through {attention.name!r}")
        out = torch.empty(len(token_ids), self.config.hidden_size)
        self._library.muster_forward(self._handle, token_ids.data_ptr(), positions.data_ptr(), out.data_ptr())
        return out

    def normalized(self, hidden: Tensor) -> Tensor:
        """hidden: [R, H], rows of what `forward` returned. Returns them after the final norm, [R, H] float32."""
        return self._norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [R, H], rows of what `forward` returned. Returns [R, V] float32, valid until the next call.

        Fresh memory would be faulted in page by page on every step, which costs as much as the product itself.
        """
        hidden = hidden.contiguous()
        self._reserve_logits(len(hidden))
        out = self._logits[: len(hidden)]
        self._library.muster_logits(self._handle, hidden.data_ptr(), len(hidden), out.data_ptr())
        return out

    def decode(self, rows: DecodeRows) -> Tensor:
        """The whole step of sequences with one new token each. Returns [R, V] float32, valid until the next call.

        One native call: Python's lock is let go, and taken again while others want it, once in a step.
        """
        self._call_decode(rows, None)
        return self._logits[: rows.num_rows]

    def decode_best(self, rows: DecodeRows) -> None:
        """The same; writes to `rows.best` which logit of each row is the largest, by the sampler's rule."""
        self._call_decode(rows, rows.best)

    @property
    def decode_times_s(self) -> tuple[float, float, float]:
        """What forward pass, logits and choice of the last `decode` took."""
        step = self._decode
        return step.forward_s, step.logits_s, step.best_s

    def _call_decode(self, rows: DecodeRows, best: array[int] | None) -> None:
        step, num_rows = self._decode, rows.num_rows
        self._reserve_logits(num_rows)
        if self._decode_addresses != (id(rows), rows.allocation):
            self._decode_addresses = (id(rows), rows.allocation)
            step.table_width = rows.block_tables.shape[1]
            step.token_ids, _ = rows.token_ids.buffer_info()
            step.positions, _ = rows.positions.buffer_info()
            step.block_tables = rows.block_tables.ctypes.data
        step.num_sequences = num_rows
        step.best = best.buffer_info()[0] if best is not None else None
        self._library.muster_decode(self._handle, step)

    def _reserve_logits(self, num_rows: int) -> None:
        if len(self._logits) < num_rows:
            self._logits = torch.empty(num_rows, self.config.vocab_size)
            self._decode.logits = self._logits.data_ptr()

    def linear(self, slot: Slot, layer: int, x: Tensor, num_outputs: int) -> Tensor:
        """One linear map alone. x: [T, in] float32. Returns [T, num_outputs]."""
        x = x.contiguous()
        out = torch.empty(len(x), num_outputs)
        self._library.muster_linear(self._handle, slot, layer, x.data_ptr(), len(x), out.data_ptr())
        return out

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See AttentionBackend.attend; any floating-point tensors, returns float32."""
        q, k, v = (x.float().contiguous() for x in (q, k, v))
        out = torch.empty_like(q)
        self._library.muster_attend(self._handle, layer, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        return out

    def use_cache(self, cache: KvCache) -> None:
        """From now on keys and values live in `cache`, whose layers are bfloat16 and evenly spaced."""
        stride = cache.keys[0].numel()
        self._library.muster_model_set_cache(
            self._handle, cache.keys[0].data_ptr(), cache.values[0].data_ptr(), stride, cache.block_size
        )

    def plan(self, batch: AttentionBatch) -> None:
        """The layout of the step that comes next."""
        query_lens = np.array(batch.query_lens, dtype=np.int32)
        context_lens = np.array(batch.context_lens, dtype=np.int32)
        slots = batch.slots.contiguous()
        tables = batch.block_tables.to(torch.int32).contiguous()
        plan = Plan(
            num_sequences=len(query_lens),
            num_tokens=len(slots),
            query_lens=query_lens.ctypes.data,
            context_lens=context_lens.ctypes.data,
            slots=slots.data_ptr(),
            block_tables=tables.data_ptr(),
            table_width=tables.shape[1],
        )
        self._library.muster_plan(self._handle, plan)

    def _load(self, weights: WeightSource, progress: Callable[[int, int], None]) -> None:
        config = self.config
        progress(0, config.num_layers)
        self._add(weights, Slot.EMBEDDING, 0, ["model.embed_tokens"])
        for layer in range(config.num_layers):
            self._load_layer(weights, layer)
            progress(layer + 1, config.num_layers)
        self._set_norm(weights, Norm.FINAL, 0, "model.norm.weight")
        if config.tied_embeddings:
            self._library.muster_model_tie_head(self._handle)
        else:
            self._add(weights, Slot.HEAD, 0, ["lm_head"])

    def _load_layer(self, weights: WeightSource, layer: int) -> None:
        config = self.config
        prefix = f"model.layers.{layer}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self._set_norm(weights, Norm.ATTENTION, layer, f"{prefix}.input_layernorm.weight")
        self._set_norm(weights, Norm.MLP, layer, f"{prefix}.post_attention_layernorm.weight")
        if config.qk_norm:
            self._set_norm(weights, Norm.QUERY, layer, f"{attention}.q_norm.weight")
            self._set_norm(weights, Norm.KEY, layer, f"{attention}.k_norm.weight")
        self._add(weights, Slot.QKV, layer, [f"{attention}.{part}_proj" for part in "qkv"], bias=config.qkv_bias)
        self._add(weights, Slot.OUTPUT, layer, [f"{attention}.o_proj"], bias=config.output_bias)
        gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
        self._add(weights, Slot.GATE_UP, layer, gate_up, bias=config.mlp_bias)
        self._add(weights, Slot.DOWN, layer, [f"{mlp}.down_proj"], bias=config.mlp_bias)

    def _add(self, weights: WeightSource, slot: Slot, layer: int, names: list[str], *, bias: bool = False) -> None:
        for name in names:
            self._add_matrix(
                slot,
                layer,
                _packable(weights, f"{name}.weight", self._quantise),
                weights.read(f"{name}.bias").float().contiguous().numpy() if bias else None,
            )

    def _add_matrix(self, slot: Slot, layer: int, matrix: StoredMatrix, bias: npt.NDArray[np.float32] | None) -> None:
        num_rows, num_cols = matrix.shape
        order = None if matrix.row_order is None else np.ascontiguousarray(matrix.row_order, dtype=np.int32)
        result = self._library.muster_model_add_matrix(
            self._handle,
            slot,
            layer,
            TYPE_IDS[matrix.kind],
            matrix.data.ctypes.data,
            num_rows,
            num_cols,
            None if order is None else order.ctypes.data,
            None if bias is None else bias.ctypes.data,
        )
        if result != 0:
            raise MemoryError(f"no memory for a matrix of {num_rows} x {num_cols} weights of type {matrix.kind}")

    def _set_norm(self, weights: WeightSource, norm: Norm, layer: int, name: str) -> None:
        values = weights.read(name).float().contiguous()
        if self._library.muster_model_set_norm(self._handle, norm, layer, values.data_ptr(), len(values)) != 0:
            raise MemoryError(f"no memory for the weights of {name}")


class NativeAttention:
    """The attention of a NativeModel as a backend: plans for the whole step, and attends alone for tests."""

    def __init__(self, model: NativeModel, cache: KvCache) -> None:
        model.use_cache(cache)
        self._model = model
        self._cache = cache  # the model holds its address only

    @property
    def name(self) -> str:
        return f"native-{self._model.instruction_set}"

    def plan(self, batch: AttentionBatch) -> None:
        self._model.plan(batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [T, N, D]; k, v: [T, K, D]. Returns [T, N, D] float32."""
        return self._model.attend(layer, q, k, v)


def why_not(config: ModelConfig) -> str | None:
    """Why the native kernels do not run a model of this shape; None when they do."""
    if config.experts is not None:
        return f"it is a mixture of {config.experts.num_experts} experts, which torch computes"
    if config.head_dim % 16:
        return f"head_dim {config.head_dim} is no multiple of 16"
    if config.num_heads // config.num_kv_heads > _MAX_GROUP:
        return (
            f"{config.num_heads} query heads share {config.num_kv_heads} key/value heads, more than {_MAX_GROUP} each"
        )
    return None


def _packable(weights: WeightSource, name: str, quantise: Quantise) -> StoredMatrix:
    """The matrix as it is stored where the library reads that; otherwise in blocks of eight bits, or its numbers."""
    stored = stored_matrix(weights, name)
    if stored is not None and stored.kind in TYPE_IDS:
        return stored
    matrix = float_matrix(weights, name)
    return matrix if stored is None else quantise(matrix, "Q8_0")

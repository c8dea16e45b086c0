"""Model cards, with the context length under the names that different clients look for."""

from __future__ import annotations

import datetime

from muster import v1 as wire

from gateway.openai.bodies import ModelCard


def model_card(name: str, model: wire.ModelInfo, created: int) -> ModelCard:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "muster",
        "root": model.served_model_names[0] if model.served_model_names else name,
        "parent": None,
        # Anthropic's clients read these.
        "type": "model",
        "display_name": name,
        "lifecycle": "active",
        "max_input_tokens": model.max_model_len,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).isoformat(),
        "max_model_len": model.max_model_len,
        "context_window": model.max_model_len,
        "meta": {
            "n_ctx": model.max_model_len,
            "n_vocab": model.vocab_size,
            "n_params": model.num_parameters if model.HasField("num_parameters") else None,
            "architecture": model.architecture,
            "quantization": model.quantization or None,
            "dtype": model.dtype,
        },
    }

"""Writes a GGUF checkpoint as a Hugging Face folder in bfloat16: `python -m benchmarks.peers.dequantise GGUF FOLDER`.

A process of its own, so that torch and the weights are gone from memory when the race begins. The tokenizer that
transformers makes of a GGUF file is wrong for some strings, though not for the words of a load test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    main()

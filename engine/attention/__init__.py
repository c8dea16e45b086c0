"""Attention over a paged KV cache: one protocol, one file per kernel family."""

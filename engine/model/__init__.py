"""Checkpoints and the transformer: files in, logits out."""

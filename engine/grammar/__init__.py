"""Answers that are sentences of a given language: constraints compiled, and how far each sequence has got."""

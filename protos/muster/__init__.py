"""Muster's contract as generated Python code; imports nothing of ours."""

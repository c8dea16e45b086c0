"""Constrained answers of a running deployment, each checked by somebody else: `python -m benchmarks.structured`.

`schemas` and `languages` make constraints, `survey` has them answered and judges.
"""

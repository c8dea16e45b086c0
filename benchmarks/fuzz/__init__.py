"""Mutated requests against a running deployment: `python -m benchmarks.fuzz`.

`endpoints` has a few good bodies for each, `poison` the values that replace their parts, `bodies` and `wire` make requests
of them, `client` sends these, `verdict` judges the answers, and `campaign` looks after the deployment meanwhile.
"""

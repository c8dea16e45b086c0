"""Mutated requests against a running deployment: `python -m benchmarks.fuzz`.

`endpoints` has a few good bodies for each, `poison` and `headers` what replaces their parts, `bodies` and `wire` make
requests of them, `client` sends these, `verdict` judges the answers, `campaign` looks after the deployment meanwhile.
"""

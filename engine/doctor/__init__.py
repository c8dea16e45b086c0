"""What the engine would compute with on this machine, and why: the engine's part of `muster doctor`.

Runs without torch and numpy, whose absence is one of the findings.
"""

"""The engine: which token comes next, for whom, in which memory.

Token ids in, token ids out; nothing about text and nothing about the network.
"""

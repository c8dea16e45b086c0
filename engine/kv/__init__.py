"""Whose tokens lie in which block of the KV cache. Bookkeeping only: no tensor is touched here."""

"""Threads for llguidance, which follows chains of rules and references by recursion."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

# The longest chain that fits into a constraint takes a sixth of it; only what is touched becomes memory.
_STACK_BYTES = 256 << 20


def deep_stack_worker(name: str) -> ThreadPoolExecutor:
    """One running thread, whose stack cannot be overflown by a constraint: that would end the process."""
    worker = ThreadPoolExecutor(1, thread_name_prefix=name)
    before = threading.stack_size(_STACK_BYTES)
    try:
        worker.submit(threading.get_ident).result()
    finally:
        threading.stack_size(before)
    return worker

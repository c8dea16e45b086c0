"""How a benchmark is stopped."""

from __future__ import annotations

import signal


def stop_on_signals() -> None:
    """SIGINT and SIGTERM both raise KeyboardInterrupt, in asyncio too, so that `finally` ends what was started.

    Also in a background job of a shell script, which starts with SIGINT ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))

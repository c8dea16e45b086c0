"""The metadata keys that calls of every service may carry, see the comments of the .proto files."""

from __future__ import annotations

from typing import Any

from services.rpc.errors import invalid_field

RANK_KEY = "x-data-parallel-rank"
TRACEPARENT_KEY = "traceparent"


def value_of(context: Any, key: str) -> str | None:
    """None when the key is absent; raises RpcError when it comes more than once."""
    values = [value for found, value in context.invocation_metadata() or () if found == key]
    if len(values) > 1:
        raise invalid_field(key, f"comes {len(values)} times in the metadata; send it once")
    if not values:
        return None
    value = values[0]
    return value if isinstance(value, str) else value.decode("latin-1")

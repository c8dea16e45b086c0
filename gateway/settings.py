"""Settings of the REST front end; plain values, parsed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AppSettings:
    """How the REST API behaves.

    With `api_keys`, everything but the health routes (and `/metrics` with `open_metrics`) needs one of them.
    `ping_interval_s` is the silence after which a stream gets a comment; 0 switches it off.
    `any_model_name` serves requests for names that are not served, for clients with a fixed one.
    Pages of `cors_origins` may call from a browser; "*" is any. Without `cors_methods` and `cors_headers` they may use
    all methods that are served and send any header.
    `response_store_bytes` of finished responses are kept in memory, each for `response_ttl_s`; 0 keeps none.
    `page`: there is a page to chat and watch at the root.
    `reasoning_parser` and `tool_call_parser` say in which form the served model writes thoughts and calls: one of
    PARSERS in `gateway.reasoning` and `gateway.tool_use`; "auto" goes by its chat template.
    """

    product_version: str = ""
    api_keys: tuple[str, ...] = ()
    open_metrics: bool = False
    max_body_bytes: int = 32 << 20
    ping_interval_s: float = 15.0
    request_timeout_s: float | None = None
    any_model_name: bool = False
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    response_store_bytes: int = 64 << 20
    response_ttl_s: float = 86_400.0
    cors_methods: tuple[str, ...] = ()
    cors_headers: tuple[str, ...] = ()
    cors_credentials: bool = False
    reasoning_parser: str = "auto"
    tool_call_parser: str = "auto"
    page: bool = True

"""What stands around a body: methods, paths, queries and headers, wrong ones."""

from __future__ import annotations

from benchmarks.fuzz.poison import NUMBERS

_LONG = b"x" * 9000
_WORDS = (
    b"",
    b"x",
    b"\xff\xfe",
    b"\xc3\xa9",
    _LONG,
    b"null",
    b"0",
    b"-1",
    b"1e9",
    b"\t",
    b"%00",
    b"a,b",
    b'"',
    b"\xb2",
)
_TYPES = (
    *(b"text/plain", b"application/json; charset=utf-16", b"application/xml", b"", b"*/*", b"application/json;;;="),
    *(
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"MULTIPART/FORM-DATA",
        b"application/grpc",
    ),
)
_RANKS = (
    b"0",
    b"1",
    b"2",
    b"-1",
    b" 1 ",
    b"0x1",
    b"\xb2",
    b"\xd9\xa1",
    b"9" * 5000,
    *(n.encode() for n in NUMBERS[:20]),
)
_VERSIONS = (b"2023-06-01", b"2023-01-01", b"2099-99-99", b"", b"latest", b"20\xb23-06-01", _LONG)
_TRACES = (b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00", b"zz", _LONG)
_ENCODINGS = (b"gzip", b"br", b"identity", b"deflate, gzip", b"x", b"", b"GZIP")
# Headers that are read somewhere, and what they may wrongly hold.
HEADERS: dict[bytes, tuple[bytes, ...]] = {
    b"content-type": _TYPES,
    b"content-encoding": _ENCODINGS,
    b"x-data-parallel-rank": _RANKS,
    b"anthropic-version": _VERSIONS,
    b"anthropic-beta": _WORDS,
    b"traceparent": _TRACES,
    b"tracestate": _WORDS,
    b"x-request-id": (*_WORDS, b"a" * 500, b"../x", b"<b>"),
    b"x-session-id": (*_WORDS, b"s" * 500),
    b"authorization": (
        b"",
        b"Bearer",
        b"Bearer wrong",
        b"Basic a2V5",
        b"bearer  key",
        b"Bearer k\xe9y",
        b"Bearer " + _LONG,
    ),
    b"x-api-key": (b"", b"wrong", b"\xff", b"key", _LONG),
    b"accept": (b"text/event-stream", b"text/html", b"", b"*/*;q=0", b"x"),
    b"accept-encoding": (b"gzip", b"identity;q=0", b"x"),
    b"connection": (b"close", b"keep-alive, close", b"x"),
    b"upgrade": (b"websocket", b"h2c", b"x"),
    b"origin": (b"http://evil", b"null"),
    b"host": (b"", b"evil", b"[::1", b"\xff"),
    b"cookie": (b"a=b", _LONG),
    b"x-forwarded-for": (b"1.2.3.4", b"\xff"),
    b"x-forwarded-prefix": (b"/x", b"//evil"),
    b"expect": (b"100-continue", b"x"),
    b"range": (b"bytes=0-1",),
    b"te": (b"trailers",),
}
METHODS = (
    b"GET",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"OPTIONS",
    b"HEAD",
    b"TRACE",
    b"CONNECT",
    b"POST",
    b"QUERY",
    b"BREW",
    b"get",
)
PATHS = (
    *(
        b"/",
        b"//",
        b"/v1",
        b"/v1//models/",
        b"/v1/models/%00",
        b"/v1/models/%ff%fe",
        b"/v1/models/a%2Fb",
        b"/v1/models/../x",
    ),
    *(b"/v1/responses/%E2%82%AC", b"/v1/responses/resp_" + b"0" * 32, b"/v1/responses/x/input_items", b"/v1/messagesx"),
    *(
        b"/admin",
        b"/v1/admin/drain",
        b"/abort",
        b"/v1/files",
        b"/v1/audio/speech",
        b"/v1/batches",
        b"/v2/x",
        b"/favicon.ico",
    ),
    *(
        b"/v1/chat/completions?" + b"a=b&" * 300,
        b"/%2e%2e/%2e%2e/etc/passwd",
        b"/" + b"x" * 9000,
        b"*",
        b"http://h/v1/models",
    ),
    *(
        b"/v1/models?x=%ff",
        b"/v1/\xff",
        b"/v1/mod els",
        b"/v1/models#x",
        b"/v1/messages/x",
        b"/v1/messages/batches",
        b"/;x=1",
    ),
)
QUERIES = (
    *(
        b"?limit=",
        b"?limit=0",
        b"?limit=-1",
        b"?limit=99999999999999999999",
        b"?limit=\xb2",
        b"?limit=%C2%B2",
        b"?order=up",
    ),
    *(
        b"?after=%00",
        b"?after=%ff",
        b"?after=x&after=y",
        b"?stream=true",
        b"?stream=%ff",
        b"?" + b"a=b&" * 500,
        b"?&&==",
        b"?%",
    ),
)

"""The OpenAPI 3.1 document, from the operations that are routed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from gateway.errors import GatewayError, Unauthenticated, Unavailable
from gateway.schema.json_schema import JsonSchemas, Schema
from gateway.schema.limits import hints_of
from gateway.schema.operation import Operation

_JSON = "application/json"
_SSE = "text/event-stream"
_PARAMETER = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "OpenAI-format REST over all data-parallel ranks. Every /v1 path is also served without /v1. Fields that are not "
    "listed are ignored, except for known ones that would change the result: those are 400 and named."
)
_REQUEST_ID = {"schema": {"type": "string"}, "description": "The request's id, the caller's own if it sent one."}
_RETRY_AFTER = {"schema": {"type": "string", "pattern": "^[0-9]+$"}, "description": "Seconds until trying again."}


def openapi_document(
    operations: Sequence[Operation], *, version: str, root_path: str = "", guarded: bool = False, closed: bool = False
) -> dict[str, Any]:
    """`guarded`: API keys are asked for. `closed` makes response schemas refuse fields they don't know, for tests."""
    schemas = JsonSchemas(closed=closed)
    paths: dict[str, Any] = {}
    ids: set[str] = set()
    for operation in operations:
        path = paths.setdefault(operation.documented_path, {})
        told = _operation(operation, schemas, guarded=guarded and not operation.is_open)
        if told["operationId"] in ids:  # one endpoint at several paths
            told["operationId"] += re.sub(r"\W+", "_", operation.path)
        ids.add(told["operationId"])
        path[operation.method.lower()] = told
    components: dict[str, Any] = {"schemas": dict(sorted(schemas.components.items()))}
    if guarded:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Muster", "version": version or "0", "description": _DESCRIPTION},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation, schemas: JsonSchemas, *, guarded: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.endpoint.__qualname__.replace(".", "_"),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schemas, guarded=guarded),
    }
    if parameters := [*_path_parameters(operation), *_query_parameters(operation, schemas)]:
        told["parameters"] = parameters
    if operation.request is not None:
        content = {_JSON: {"schema": schemas.request(operation.request)}}
        if operation.example is not None:
            content[_JSON]["example"] = dict(operation.example)
        told["requestBody"] = {"required": True, "content": content}
    if guarded:
        told["security"] = [{"bearer": []}, {"key": []}]
    return told


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema} for name in _PARAMETER.findall(operation.path)
    ]


def _query_parameters(operation: Operation, schemas: JsonSchemas) -> list[dict[str, Any]]:
    hints = {} if operation.query is None else hints_of(operation.query)
    return [{"name": name, "in": "query", "schema": schemas.request(hint)} for name, hint in hints.items()]


def _responses(operation: Operation, schemas: JsonSchemas, *, guarded: bool) -> dict[str, Any]:
    content: dict[str, Any] = {operation.content: {"schema": _body(operation, schemas)}}
    if operation.stream is not None:
        data = schemas.response(operation.stream | operation.error_body)
        content[_SSE] = {"schema": _event(data, named=operation.names_events)}
    responses: dict[str, Any] = {"200": _response("Success", content)}
    by_status: dict[int, list[type[GatewayError]]] = {}
    for error in (*operation.all_errors, *((Unauthenticated,) if guarded else ())):
        by_status.setdefault(error.status, []).append(error)
    for status, errors in sorted(by_status.items()):
        responses[str(status)] = _error_response(status, errors, schemas.response(operation.error_body))
    if operation.unavailable is not None:
        body = {_JSON: {"schema": schemas.response(operation.unavailable)}}
        responses["503"] = _response("Not ready", body, {"Retry-After": _RETRY_AFTER})
    return responses


def _event(data: Schema, *, named: bool) -> Schema:
    """One server-sent event, as OpenAPI describes streams: what each item is."""
    json_data = {"type": "string", "contentMediaType": _JSON, "contentSchema": data}
    if named:
        properties = {"event": {"type": "string", "description": "The type of the data."}, "data": json_data}
        return {"type": "object", "properties": properties, "required": ["event", "data"]}
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, json_data]}},
        "required": ["data"],
    }


def _body(operation: Operation, schemas: JsonSchemas) -> Schema:
    return {"type": "string"} if operation.response is None else schemas.response(operation.response)


def _error_response(status: int, errors: Sequence[type[GatewayError]], body: Schema) -> dict[str, Any]:
    codes = sorted({error.code for error in errors if error.code})
    description = HTTPStatus(status).phrase + (f": {', '.join(codes)}" if codes else "")
    headers: dict[str, Any] = {}
    if status == HTTPStatus.TOO_MANY_REQUESTS or any(issubclass(error, Unavailable) for error in errors):
        headers["Retry-After"] = _RETRY_AFTER
    return _response(description, {_JSON: {"schema": body}}, headers)


def _response(description: str, content: dict[str, Any], headers: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": description, "headers": {"X-Request-Id": _REQUEST_ID, **(headers or {})}, "content": content}

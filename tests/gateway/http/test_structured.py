"""What an answer must be: parsed from `response_format` and `structured_outputs` into the generator's request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.generation_request import Constraint, ConstraintKind
from tests.support.rest_api import RestApi

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"const": "ä"}}, "required": ["z"]}
SCHEMA_TEXT = json.dumps(SCHEMA, ensure_ascii=False)
_FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint(ConstraintKind.JSON_OBJECT, param="response_format")),
        (
            {"response_format": _FORMAT},
            Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="response_format.json_schema.schema"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"json": SCHEMA_TEXT, "regex": None}},
            Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT, param="structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"regex": "a+"}},
            Constraint(ConstraintKind.REGEX, "a+", param="structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"choice": ["yes", "no"]}},
            Constraint(ConstraintKind.CHOICE, choices=("yes", "no"), param="structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"'}, "min_tokens": 0, "ignore_eos": False},
            Constraint(ConstraintKind.GRAMMAR, 'root ::= "a"', param="structured_outputs.grammar"),
        ),
        (
            {"structured_outputs": {"json_object": True}, "response_format": {"type": "text"}},
            Constraint(ConstraintKind.JSON_OBJECT, param="structured_outputs.json_object"),
        ),
    ],
)
async def test_constraints_reach_the_generator(path: str, fields: dict[str, Any], expected: Constraint | None) -> None:
    api = RestApi()
    body = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    async with api.client() as client:
        response = await client.post(path, json={**body, **fields})
    assert response.status_code == 200, response.text
    (request,) = api.generator.requests
    assert request.constraint == expected

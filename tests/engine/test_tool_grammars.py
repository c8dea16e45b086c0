"""The gateway's grammars of forced calls, compiled and followed by a random model."""

from __future__ import annotations

import json

import jsonschema
import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import InvalidRequestError
from engine.request import Constraint, ConstraintKind, FinishReason, Request, SamplingParams, StopConditions
from gateway.tool_calls import CallArguments, CallStart, Content, ToolCallParser
from gateway.tool_use import HERMES, LLAMA3, PLAIN, Tool, ToolFormat, ToolUse, forced_calls
from tests.support.tiny_model import NUM_BYTES, write_huggingface_directory

TOOLS = (
    Tool("weather", {"properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}, strict=False),
    Tool('odd "name" 🙂', {"type": "object", "propertyNames": {}, "maxProperties": 1, "additionalProperties": False}),
    Tool(
        "tree",
        {
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
            "properties": {"root": {"$ref": "#/$defs/node"}},
            "additionalProperties": False,
        },
    ),
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> EngineCore:
    directory = write_huggingface_directory(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(directory, dtype="float32", num_threads=1, num_blocks=800, max_model_len=1024)
    return build_engine(config).core


def _answers(core: EngineCore, use: ToolUse, form: ToolFormat, num: int) -> list[str]:
    """Of those that came to an end."""
    constraint = Constraint(ConstraintKind.GRAMMAR, forced_calls(use, form).text)
    tokens: dict[str, list[int]] = {}
    texts: list[str] = []
    for seed in range(num):
        tokens[str(seed)] = []
        sampling = SamplingParams(seed=seed)
        core.add(Request(str(seed), (1, 2, 3), sampling, StopConditions(900), constraint=constraint))
    while core.has_work:
        for output in core.step().outputs:
            tokens[output.request_id] += output.token_ids
            assert output.finish_reason is not FinishReason.ERROR, output.error
            if output.finish_reason is FinishReason.STOP:
                texts.append(bytes(i for i in tokens[output.request_id] if i < NUM_BYTES).decode())
    return texts


def _fits(core: EngineCore, use: ToolUse, form: ToolFormat, text: str) -> bool:
    constraint = Constraint(ConstraintKind.GRAMMAR, forced_calls(use, form).text)
    assert core.grammars is not None
    return core.grammars.prepare(constraint, tuple(text.encode())).exception() is None


@pytest.mark.parametrize("form", [HERMES, LLAMA3, PLAIN], ids=["hermes", "llama 3", "plain"])
@pytest.mark.parametrize("parallel", [True, False])
def test_every_forced_answer_is_calls_with_valid_arguments(core: EngineCore, form: ToolFormat, parallel: bool) -> None:
    use = ToolUse(TOOLS, forced=True, parallel=parallel)
    texts = _answers(core, use, form, 16)
    assert len(texts) > 4
    num_calls = []
    schemas = {tool.name: tool.parameters for tool in TOOLS}
    for text in texts:
        parser = ToolCallParser(form, use.names)
        names, arguments = list[str](), list[str]()
        for event in [*parser.push(text), *parser.finish()]:
            match event:
                case CallStart(_, name):
                    names.append(name)
                    arguments.append("")
                case CallArguments(index, part):
                    arguments[index] += part
                case Content():
                    pytest.fail(f"text beside the calls: {text!r}")
        num_calls.append(len(names))
        for name, written in zip(names, arguments, strict=True):
            schema = {"type": "object", **schemas[name]}
            schema.pop("propertyNames", None)  # not enforced, and not strict
            schema.pop("maxProperties", None)
            jsonschema.Draft202012Validator(schema).validate(json.loads(written))
    assert min(num_calls) >= 1
    assert parallel or max(num_calls) == 1
    call = f'{form.opening}{{"name": "tree", "{form.arguments_key}": {{}}}}{form.closing}'
    assert _fits(core, use, form, call)
    assert _fits(core, use, form, call + form.separator + call) is parallel


def test_a_strict_tool_is_enforced_or_refused(core: EngineCore) -> None:
    use = ToolUse((Tool("f", {"type": "object", "propertyNames": {}}, strict=True),), forced=True)
    constraint = Constraint(ConstraintKind.GRAMMAR, forced_calls(use, PLAIN).text)
    with pytest.raises(InvalidRequestError, match="propertyNames"):
        core.add(Request("r", (1,), constraint=constraint))

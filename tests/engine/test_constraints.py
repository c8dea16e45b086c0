"""Constrained answers of a random model, drawn at temperature 1: whoever finishes says a sentence of the language."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.structured.schemas import random_schema
from benchmarks.structured.validation import why_not
from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import InvalidRequestError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.tokens import TokenBytes, read_token_bytes
from engine.request import (
    Constraint,
    ConstraintKind,
    FinishReason,
    Output,
    Request,
    SamplingParams,
    StopConditions,
)
from tests.support.tiny_model import EOS_TOKEN_ID, NUM_BYTES, write_gguf, write_huggingface_directory

MAX_TOKENS = 400
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9)
REGEX = Constraint(ConstraintKind.REGEX, r"[0-9]{3}-[a-f]{1,9}")
CHOICE = Constraint(ConstraintKind.CHOICE, choices=("yes", "no", "maybe", 'a "quoted" \\ one', "日本語", "yes, really"))
LARK = Constraint(ConstraintKind.GRAMMAR, 'start: sum\nsum: term ("+" term)*\nterm: /[1-9][0-9]?/ | "(" sum ")"')
GBNF = Constraint(ConstraintKind.GRAMMAR, 'root ::= item+ "."\nitem ::= "<" [a-z]+ ">" | "-"')
ANY_OBJECT = Constraint(ConstraintKind.JSON_OBJECT)
POINT = Constraint(
    ConstraintKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "object",
            "properties": {"label": {"type": "string", "maxLength": 12}, "x": {"type": "integer", "maximum": 99999}},
            "required": ["label", "x"],
            "additionalProperties": False,
        }
    ),
)
EVERY_KIND = (REGEX, CHOICE, LARK, GBNF, ANY_OBJECT, POINT)


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface_directory(tmp_path_factory.mktemp("tiny"))


def _core(directory: Path, **changes: Any) -> EngineCore:
    values: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "num_blocks": 600, "max_model_len": 512}
    return build_engine(EngineConfig(directory, **(values | {"max_num_seqs": 16} | changes))).core


def _request(request_id: str, constraint: Constraint | None, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "sampling": SamplingParams(seed=hash(request_id) % 997),
        "stop": StopConditions(MAX_TOKENS),
    }
    return Request(request_id, PROMPT, constraint=constraint, **(values | changes))


def _seeded(request_id: str, constraint: Constraint | None, seed: int, **changes: Any) -> Request:
    return _request(request_id, constraint, sampling=SamplingParams(seed=seed), **changes)


def _run(core: EngineCore, *requests: Request) -> dict[str, list[Output]]:
    for request in requests:
        core.add(request)
    outputs: dict[str, list[Output]] = {request.request_id: [] for request in requests}
    while core.has_work:
        for output in core.step().outputs:
            outputs[output.request_id].append(output)
        core.check()
    return outputs


def _tokens(outputs: list[Output]) -> tuple[int, ...]:
    return tuple(token_id for output in outputs for token_id in output.token_ids)


def _finished(outputs: list[Output]) -> str | None:
    """The text of an answer that ended by itself; one that was cut ended without an error at least."""
    end = outputs[-1]
    assert end.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), end.error
    if end.finish_reason is FinishReason.LENGTH:
        assert len(_tokens(outputs)) == MAX_TOKENS
        return None
    *text, last = _tokens(outputs)
    assert last in (EOS_TOKEN_ID, NUM_BYTES)
    return bytes(text).decode()


def test_two_hundred_random_schemas(tiny_directory: Path) -> None:
    core = _core(tiny_directory)
    schemas = {str(seed): random_schema(seed) for seed in range(200)}
    outputs = _run(
        core,
        *[
            _seeded(name, Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), int(name))
            for name, schema in schemas.items()
        ],
    )
    num_finished = 0
    for name, schema in schemas.items():
        text = _finished(outputs[name])
        if text is not None:
            num_finished += 1
            assert why_not(text, schema) is None
    assert num_finished > 150, "most answers come to an end"


def test_regexes_choices_and_grammars(tiny_directory: Path) -> None:
    core = _core(tiny_directory)
    cases = {f"{kind} {seed}": (kind, seed) for kind in range(len(EVERY_KIND)) for seed in range(16)}
    outputs = _run(core, *[_seeded(name, EVERY_KIND[kind], seed) for name, (kind, seed) in cases.items()])
    seen: dict[int, set[str]] = {kind: set() for kind in range(len(EVERY_KIND))}
    for name, (kind, _) in cases.items():
        text = _finished(outputs[name])
        if text is not None:
            seen[kind].add(text)
    assert all(re.fullmatch(r"[0-9]{3}-[a-f]{1,9}", text) for text in seen[0])
    assert seen[1] <= set(CHOICE.choices)
    assert len(seen[1]) > 3
    assert all(re.fullmatch(r"[0-9+()]+", text) and eval(text) > 0 for text in seen[2])
    assert all(re.fullmatch(r"(<[a-z]+>|-)+\.", text) for text in seen[3])
    assert all(isinstance(json.loads(text), dict) for text in seen[4])
    assert all(json.loads(text).keys() == {"label", "x"} for text in seen[5])
    assert all(len(texts) > 1 for texts in seen.values()), "there is something to choose"


def test_greedy_answers_are_constrained_too(tiny_directory: Path) -> None:
    outputs = _run(_core(tiny_directory), _request("g", REGEX, sampling=SamplingParams(temperature=0.0)))
    text = _finished(outputs["g"])
    assert text is not None
    assert re.fullmatch(r"[0-9]{3}-[a-f]{1,9}", text)


def test_unconstrained_mates_notice_nothing(tiny_directory: Path) -> None:
    free = [
        _request("greedy", None, sampling=SamplingParams(temperature=0.0)),
        _seeded("drawn", None, 5),
        _request("penalised", None, sampling=SamplingParams(seed=6, top_p=0.9, frequency_penalty=0.5)),
    ]
    alone = {request.request_id: _tokens(_run(_core(tiny_directory), request)[request.request_id]) for request in free}
    mates = [_seeded(f"mate {i}", EVERY_KIND[i % len(EVERY_KIND)], i) for i in range(12)]
    outputs = _run(_core(tiny_directory), *mates[:6], *free, *mates[6:])
    assert {request.request_id: _tokens(outputs[request.request_id]) for request in free} == alone


def test_mates_and_chunks_do_not_change_a_constrained_answer(tiny_directory: Path) -> None:
    requests = [_seeded(str(i), constraint, 40 + i) for i, constraint in enumerate(EVERY_KIND)]
    alone = {
        request.request_id: _tokens(_run(_core(tiny_directory), request)[request.request_id]) for request in requests
    }
    together = _run(_core(tiny_directory, max_num_batched_tokens=16), *requests)
    assert {name: _tokens(outputs) for name, outputs in together.items()} == alone


def test_preemption_equals_the_uninterrupted_run(tiny_directory: Path) -> None:
    requests = [_seeded(str(i), (ANY_OBJECT, POINT)[i % 2], 60 + i, stop=StopConditions(60)) for i in range(8)]
    calm = _run(_core(tiny_directory), *requests)
    core = _core(tiny_directory, num_blocks=18, block_size=4, max_model_len=72, max_num_seqs=8)
    crowded = _run(core, *requests)
    assert core.load().preemptions_total > 0
    assert {name: _tokens(outputs) for name, outputs in crowded.items()} == {
        name: _tokens(outputs) for name, outputs in calm.items()
    }


@pytest.mark.parametrize("constraint", EVERY_KIND, ids=lambda constraint: constraint.kind.value)
def test_continuation_equals_the_uninterrupted_run(tiny_directory: Path, constraint: Constraint) -> None:
    core = _core(tiny_directory)
    whole = _run(core, _seeded("whole", constraint, 3))["whole"]
    tokens = _tokens(whole)
    for num_done in {1, len(tokens) // 2, len(tokens) - 1, len(tokens)} - {0}:
        rest = _run(core, _seeded("rest", constraint, 3, generated_token_ids=tokens[:num_done]))["rest"]
        assert tokens[:num_done] + _tokens(rest) == tokens
        assert rest[-1].finish_reason is whole[-1].finish_reason
        assert rest[-1].usage is not None
        assert rest[-1].usage.completion_tokens == len(tokens)


def test_a_continuation_that_breaks_the_constraint_is_refused(tiny_directory: Path) -> None:
    core = _core(tiny_directory)
    with pytest.raises(InvalidRequestError, match="do not satisfy the constraint") as caught:
        core.add(_request("r", REGEX, generated_token_ids=tuple(b"12x")))
    assert caught.value.field == "generated_token_ids"
    assert not core.has_work


def test_a_constraint_wins_over_the_tokens_that_are_allowed(tiny_directory: Path) -> None:
    """Of what is allowed only digits fit; where nothing allowed fits, the constraint alone decides."""
    sampling = SamplingParams(seed=1, allowed_token_ids=tuple(b"70q"), bad_words=((ord("7"), ord("7")),))
    text = _finished(_run(_core(tiny_directory), _request("r", REGEX, sampling=sampling))["r"])
    assert text is not None
    assert re.fullmatch(r"[70]{3}-[a-f]{1,9}", text)
    assert "77" not in text


@pytest.mark.parametrize("field", ["ignore_eos", "min_tokens"])
def test_a_constraint_alone_decides_where_an_answer_ends(tiny_directory: Path, field: str) -> None:
    stop = StopConditions(20, ignore_eos=True) if field == "ignore_eos" else StopConditions(20, min_tokens=1)
    with pytest.raises(InvalidRequestError, match=f"stop.{field}: cannot be combined"):
        _core(tiny_directory).add(_request("r", REGEX, stop=stop))


def test_a_constraint_that_leads_nowhere_ends_its_own_request_only(tiny_directory: Path) -> None:
    """A vocabulary without digits cannot write the end of what it began."""
    core = _core(tiny_directory)
    tokens = read_token_bytes(tiny_directory)
    no_digits = tuple(b"" if spelled.isdigit() else spelled for spelled in tokens.by_id)
    core.grammars = GrammarCompiler(
        lambda: TokenBytes(no_digits, tokens.special_ids), vocab_size=len(no_digits), eos_token_ids=(EOS_TOKEN_ID,)
    )
    outputs = _run(core, _request("dead", Constraint(ConstraintKind.REGEX, "ab[0-9]")), _request("mate", None))
    assert _tokens(outputs["dead"]) == tuple(b"ab")
    assert outputs["dead"][-1].finish_reason is FinishReason.ERROR
    assert "no token of the model can come next" in outputs["dead"][-1].error
    assert outputs["dead"][-1].error_field == "constraint.regex", "whoever asked can change it"
    assert outputs["mate"][-1].finish_reason is not FinishReason.ERROR


def test_a_gguf_vocabulary_works_as_well(tmp_path: Path) -> None:
    core = _core(write_gguf(tmp_path / "tiny.gguf"))
    outputs = _run(core, *[_seeded(str(i), POINT, i) for i in range(8)])
    texts = [text for output in outputs.values() if (text := _finished(output)) is not None]
    assert texts
    assert all(json.loads(text).keys() == {"label", "x"} for text in texts)


def test_without_a_tokenizer_only_constraints_are_refused(tiny_directory: Path, tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path / "bare")
    (directory / "tokenizer.json").unlink()
    core = _core(directory)
    with pytest.raises(
        InvalidRequestError, match=r"constraint.regex: is not possible with this checkpoint: .*tokenizer"
    ):
        core.add(_request("r", REGEX))
    assert _run(core, _request("free", None))["free"][-1].finish_reason is not None

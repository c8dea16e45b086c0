"""Constraints compiled and refused, the cache of compiled ones, and the bytes of tokens."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import CheckpointError, InvalidRequestError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import Matcher
from engine.grammar.tokens import TokenBytes, read_token_bytes
from engine.model.gguf import GgufFile
from engine.request import Constraint, ConstraintKind
from tests.support.tiny_model import write_gguf, write_huggingface_directory

EOS = 256
ALPHABET = TokenBytes(
    (*(bytes([byte]) for byte in range(256)), b"<eos>", b"<pad>", b"true", b'{"'), frozenset({256, 257})
)
VOCAB_SIZE = 264  # the model has more rows than its tokenizer has tokens


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: ALPHABET, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), max_cached=3)


def _matcher(compiler: GrammarCompiler, constraint: Constraint, generated: tuple[int, ...] = ()) -> Matcher:
    return compiler.prepare(constraint, generated).result(20)


def _allowed(matcher: Matcher) -> set[int]:
    words = np.zeros(-(-VOCAB_SIZE // 32), dtype=np.int32)
    matcher.fill(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def _schema(schema: object) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


def _regex(pattern: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, pattern)


def _grammar(text: str) -> Constraint:
    return Constraint(ConstraintKind.GRAMMAR, text)


def test_the_end_is_allowed_exactly_where_an_answer_is_complete(compiler: GrammarCompiler) -> None:
    matcher = _matcher(compiler, _regex("ab{1,2}"))
    assert _allowed(matcher) == {ord("a")}
    matcher.take(b"a")
    assert _allowed(matcher) == {ord("b")}
    matcher.take(b"b")
    assert _allowed(matcher) == {ord("b"), EOS}
    matcher.take(b"b")
    assert _allowed(matcher) == {EOS}


def test_all_spellings_of_a_text_are_allowed(compiler: GrammarCompiler) -> None:
    assert _allowed(_matcher(compiler, _schema({"type": "boolean"}))) == {ord("t"), ord("f"), 258}
    assert _allowed(_matcher(compiler, Constraint(ConstraintKind.JSON_OBJECT))) == {ord("{"), 259}


def test_special_tokens_and_rows_without_a_token_are_never_text(compiler: GrammarCompiler) -> None:
    assert _allowed(_matcher(compiler, _regex(r"(?s:.)+"))).isdisjoint({256, 257, *range(260, 264)})
    assert _allowed(_matcher(compiler, Constraint(ConstraintKind.CHOICE, choices=("<pad>", "<eos>")))) == {ord("<")}


def test_what_was_generated_before_is_taken(compiler: GrammarCompiler) -> None:
    matcher = _matcher(compiler, _regex("abc"), tuple(b"ab"))
    assert matcher.num_taken == 2
    assert _allowed(matcher) == {ord("c")}
    assert _matcher(compiler, _regex("abc"), (*b"abc", EOS)).num_taken == 4


def test_white_space_is_bounded_and_order_is_that_of_the_schema(compiler: GrammarCompiler) -> None:
    schema = _schema({"type": "object", "properties": {"b": {}, "a": {"type": "null"}}, "required": ["a", "b"]})
    for text in (b'{"b":1,"a":null}', b'{\n  "b": [],\n  "a": null\n}', b'{ "b" : {"x":1} , "a":null, "c":2 }'):
        matcher = _matcher(compiler, schema, tuple(text))
        assert EOS in _allowed(matcher), text
    for text in (b'{"a":null', b'{\n\n"b"', b" {", b"{" + b" " * 40, b'{"b":1}'):
        with pytest.raises(InvalidRequestError, match="do not satisfy the constraint"):
            _matcher(compiler, schema, tuple(text))


def test_choices_are_whole_answers(compiler: GrammarCompiler) -> None:
    choices = ("yes", "yes!", "", 'quote " back \\ slash', "new\nline", "日本", "/a/", "a", "a")
    constraint = Constraint(ConstraintKind.CHOICE, choices=choices)
    for choice in choices:
        assert EOS in _allowed(_matcher(compiler, constraint, tuple(choice.encode()))), choice
    assert EOS not in _allowed(_matcher(compiler, constraint, tuple(b"ye")))


def test_anchors_mean_what_they_say(compiler: GrammarCompiler) -> None:
    assert _allowed(_matcher(compiler, _regex("^a/b$"), tuple(b"a/b"))) == {EOS}


def test_schemas_may_stand_in_rules(compiler: GrammarCompiler) -> None:
    lenient = '{"type": "object", "propertyNames": {}, "x-guidance": {"lenient": true, "whitespace_pattern": "x"}}'
    constraint = _grammar(f'start: "<" %json {lenient} ">" | %json {{"type": "null"}}')
    for text in (b'<{"a": 1}>', b"null"):
        assert EOS in _allowed(_matcher(compiler, constraint, tuple(text)))
    with pytest.raises(InvalidRequestError):
        _matcher(compiler, constraint, tuple(b"<{xxx"))


# Keywords of JSON Schema that are refused, each with a value that means something.
_UNENFORCED: dict[str, Any] = {
    "not": {"const": 1},
    "if": {"const": 1},
    "then": {"const": 1},
    "else": {"const": 1},
    "uniqueItems": True,
    "contains": {"const": 1},
    "minContains": 1,
    "maxContains": 1,
    "propertyNames": {"pattern": "a"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
}


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (_schema({"type": "foo"}), "Invalid type: foo"),
        *(
            (_schema({"type": "object", "properties": {"a": {name: value}}}), name)
            for name, value in _UNENFORCED.items()
        ),
        (_schema({"type": "string", "format": "nonsense"}), "'format' with a value that is not known: nonsense"),
        (_schema({"type": "string", "pattern": "(?=a)b"}), "'pattern' that cannot be enforced"),
        (_schema({"type": "string", "pattern": r"\bb"}), "'pattern' that cannot be enforced"),
        (_schema({"$ref": "http://example.com/x"}), "'$ref' to another document"),
        (_schema({"$ref": "#"}), "no token"),
        (_schema({"type": "object", "properties": {"a": {}}, "maxProperties": 1}), "'maxProperties'"),
        (_schema({"type": "number", "minimum": -1e21, "maximum": 1e21}), "'minimum' or 'maximum'"),
        (_schema({"type": "number", "minimum": float("nan")}), "NaN"),
        (Constraint(ConstraintKind.JSON_SCHEMA, '{"const": 1e999}'), "beyond 64-bit floats"),
        (_schema({"enum": []}), "empty"),
        (_schema({"allOf": [{"type": "integer"}, {"type": "string"}]}), "incompatible types"),
        (_schema({"type": "object", "required": ["z"], "additionalProperties": False}), "required property 'z'"),
        (_schema({"type": "integer", "minimum": 5, "maximum": 2}), "minimum"),
        (_schema({"$ref": "#/$defs/missing"}), "missing"),
        (_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "cannot be compiled"),
        (_schema({"type": "string", "pattern": "(a"}), "unclosed group"),
        (_schema({"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string", "minLength": 2}]}), "oneOf"),
        (_schema({"type": "integer", "multipleOf": 1_000_003}), "multipleOf"),
        (_schema({"type": "number", "multipleOf": 1e-300}), "multipleOf"),
        (_schema({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}], "type": "integer"}), "multipleOf"),
        (_schema({"x-guidance": {"lenient": True}, "type": "object", "propertyNames": {}}), "propertyNames"),
        (_schema(True), "is not a JSON object"),
        (Constraint(ConstraintKind.JSON_SCHEMA, "{"), "is no JSON"),
        (Constraint(ConstraintKind.JSON_SCHEMA, '{"items":' * 20_000), "is no JSON"),
        (Constraint(ConstraintKind.JSON_SCHEMA, '{"items":' * 500 + "{}" + "}" * 500), "cannot be compiled"),
        (Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": ["' + "x" * (256 << 10) + '"]}'), "bytes; at most 262144"),
        (_regex("(a"), "unclosed group"),
        (_regex("(?=a)b"), "look-around"),
        (_regex(r"\bword\b"), "lookarounds"),
        (_regex("(" * 30_000), "cannot be compiled"),
        (_regex("x" * 70_000), "bytes; at most 65536"),
        (Constraint(ConstraintKind.CHOICE), "is empty"),
        (Constraint(ConstraintKind.CHOICE, choices=tuple(map(str, range(1025)))), "1025 choices; at most 1024"),
        (_grammar(""), "cannot be compiled"),
        (_grammar("start: foo"), 'unknown name: "foo"'),
        (_grammar('start: "' + "x" * 70_000 + '"'), "bytes of rules; at most 65536"),
        (_grammar('start: %json {"type": "integer", "multipleOf": 1000003}'), "multipleOf"),
        (_grammar("start: %json {"), "no JSON"),
        (_grammar('start: %json {"type": "object", "propertyNames": {}}'), "propertyNames"),
        (_grammar("start: " + "(" * 30_000), "too deeply nested"),
        (_grammar('root ::= "a'), "cannot be read as GBNF"),
        (_grammar("root ::= " + "(" * 30_000), "too deeply nested"),
        (_grammar("root ::= nobody"), "nobody"),
    ],
    ids=lambda value: f"{value.kind.value} {value.text[:40]}" if isinstance(value, Constraint) else "",
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    compiler: GrammarCompiler, constraint: Constraint, reason: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _matcher(compiler, constraint)
    assert caught.value.field == f"constraint.{constraint.kind.value}"
    assert reason in caught.value.message
    assert len(caught.value.message) < 3000
    assert ("%llguidance" in caught.value.message) <= (constraint.kind is ConstraintKind.GRAMMAR)


@pytest.mark.parametrize(
    "constraint",
    [
        _grammar("start: a0\n" + "\n".join(f'a{i}: b{i} a{i + 1}\nb{i}: "x"' for i in range(2000)) + '\na2000: "y"'),
        _grammar("start: A0\n" + "\n".join(f'A{i}: "x" A{i + 1}' for i in range(3000)) + '\nA3000: "y"'),
        _schema(
            {"$ref": "#/$defs/0", "$defs": {**{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(8000)}, "8000": {}}}
        ),
    ],
    ids=["rules", "terminals", "references"],
)
def test_long_chains_do_not_overflow_the_stack(constraint: Constraint) -> None:
    """Whether they are compiled or refused, the process lives."""
    compiler = GrammarCompiler(lambda: ALPHABET, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
    try:
        matcher = _matcher(compiler, constraint)
    except InvalidRequestError as error:
        assert error.field == f"constraint.{constraint.kind.value}"  # noqa: PT017
    else:
        assert matcher.num_taken == 0


def test_compiled_grammars_are_kept_and_bounded() -> None:
    reads: list[int] = []

    def read() -> TokenBytes:
        reads.append(threading.get_ident())
        return ALPHABET

    compiler = GrammarCompiler(read, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), max_cached=3)
    assert not reads, "who never constrains pays nothing"
    for number in range(10):
        _matcher(compiler, _regex(f"a{{{number + 1}}}"))
        assert compiler.num_cached <= 3
    assert len(reads) == 1
    assert reads[0] != threading.get_ident()
    first, second = (_matcher(compiler, _regex("a{10}")) for _ in range(2))
    first.take(b"aaaaaaaaaa")
    assert _allowed(second) == {ord("a")}, "sequences do not share where they are"


def test_large_grammars_are_fewer_in_the_cache(compiler: GrammarCompiler) -> None:
    """Their memory is many times their text."""
    compiler = GrammarCompiler(lambda: ALPHABET, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
    for number in range(12):
        _matcher(compiler, Constraint(ConstraintKind.CHOICE, choices=(str(number), "x" * 250_000)))
    assert compiler.num_cached == 8
    _matcher(compiler, _regex("a"))
    assert compiler.num_cached == 9


def test_a_checkpoint_without_what_is_needed_is_told(tmp_path: Path) -> None:
    def fail() -> TokenBytes:
        raise CheckpointError("no tokenizer here")

    for compiler, reason in (
        (GrammarCompiler(fail, vocab_size=8, eos_token_ids=(0,)), "no tokenizer here"),
        (GrammarCompiler(lambda: ALPHABET, vocab_size=VOCAB_SIZE, eos_token_ids=()), "end-of-sequence"),
    ):
        with pytest.raises(InvalidRequestError, match=reason):
            _matcher(compiler, _regex("a"))


def test_token_bytes_of_both_formats_agree(tmp_path: Path) -> None:
    directory = read_token_bytes(write_huggingface_directory(tmp_path / "tiny"))
    assert directory == read_token_bytes(write_gguf(tmp_path / "tiny.gguf"))
    assert directory.by_id[:256] == tuple(bytes([byte]) for byte in range(256))
    assert directory.by_id[258] == b"<|im_end|>"
    assert directory.special_ids == {256, 257, 258, 259}


@pytest.mark.parametrize(
    ("model", "decoder", "wanted"),
    [
        ({"vocab": {"▁a": 0, "<0x0A>": 1, "é": 2}}, {"type": "Metaspace"}, (b" a", b"\n", "é".encode(), b"<s>")),
        ({"vocab": [["▁a", -1.0], ["b", -2.0], ["", 0]]}, {"type": "Metaspace"}, (b" a", b"b", b"", b"<s>")),
        (
            {"vocab": {"Ġa": 0, "Ċ": 2}},
            {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]},
            (b" a", b"", b"\n", b"<s>"),
        ),
    ],
)
def test_token_bytes_of_other_families(
    tmp_path: Path, model: dict[str, Any], decoder: dict[str, Any], wanted: tuple[bytes, ...]
) -> None:
    added = [{"id": 3, "content": "<s>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "decoder": decoder, "added_tokens": added}))
    assert read_token_bytes(tmp_path) == TokenBytes(wanted, frozenset({3}))


@pytest.mark.parametrize(
    "document", [{}, {"decoder": {"type": "ByteLevel"}}, {"model": {"vocab": {}}, "decoder": None}]
)
def test_unknown_tokenizers_are_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_token_bytes(tmp_path)


@pytest.mark.model
def test_the_default_model_spells_its_tokens_as_the_gateway_does(default_model_path: Path) -> None:
    tokens = read_token_bytes(default_model_path)
    pieces = GgufFile(default_model_path).metadata["tokenizer.ggml.tokens"]
    assert isinstance(pieces, list)
    assert len(tokens.by_id) == len(pieces)
    assert b" the" in tokens.by_id
    assert tokens.by_id[2] == b"<|im_end|>"
    assert 2 in tokens.special_ids

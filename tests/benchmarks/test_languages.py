"""Random languages: their recogniser agrees with Python's regexes, and knows recursion."""

from __future__ import annotations

import random
import re

from benchmarks.structured.languages import (
    Class,
    Either,
    Language,
    Row,
    Rule,
    Text,
    Times,
    random_grammar,
    random_regex,
)
from benchmarks.structured.validation import why_not


def test_the_recogniser_agrees_with_regexes() -> None:
    chance = random.Random(0)
    num_sentences = 0
    for seed in range(60):
        language = random_regex(seed)
        pattern = re.compile(language.as_regex())
        for _ in range(40):
            text = "".join(chance.choices("abxyz019.+* ßλ", k=chance.randint(0, 4)))
            assert language.has(text) == (pattern.fullmatch(text) is not None), (seed, text)
            num_sentences += language.has(text)
    assert num_sentences > 20


def test_rules_may_come_back_to_themselves() -> None:
    nested = Either((Class("[0-9]", "0123456789"), Row((Text("("), Times(Rule("nested"), 0, 2), Text(")")))))
    language = Language({"start": Row((Rule("nested"), Text("!"))), "nested": nested})
    assert all(map(language.has, ("1!", "()!", "((1)2)!", "((()())())!")))
    assert not any(map(language.has, ("", "!", "1", "(1!", "(123)!", "1!!")))
    assert language.as_gbnf() == 'root ::= nested "!"\nnested ::= ([0-9] | "(" (nested){0,2} ")")'
    assert language.as_lark() == 'start: nested "!"\nnested: (/[0-9]/ | "(" (nested){0,2} ")")'


def test_grammars_of_a_seed_are_the_same() -> None:
    assert random_grammar(3) == random_grammar(3)
    assert len({random_grammar(seed).as_lark() for seed in range(50)}) == 50


def test_values_are_judged() -> None:
    assert why_not('{"a": 1}', {"properties": {"a": {"type": "integer"}}}) is None
    assert why_not('{"a": "x"}', {"properties": {"a": {"type": "integer"}}}) is not None
    assert why_not("{", {}) is not None
    assert why_not('"12:00:00Z"', {"format": "time"}) is None
    assert why_not('"12:00:00"', {"format": "time"}) is not None

"""Random languages, each as a regex or as a grammar in two notations, with a recogniser that knows none of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

_CHARACTERS = "abcxyzABZ019 .,;:!?+-*/=<>()[]{}|^$%&@#_'\"\\\täßλ日🙂"
_CLASSES: tuple[tuple[str, str], ...] = (
    ("[a-z]", "abcdefghijklmnopqrstuvwxyz"),
    ("[0-9]", "0123456789"),
    ("[A-F0-9]", "ABCDEF0123456789"),
    ("[xyz_]", "xyz_"),
    ("[α-ω]", "αβγδεζηθικλμνξοπρςστυφχψω"),
)


@dataclass(frozen=True, slots=True)
class Text:
    """Itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Class:
    """One of its characters; `spelling` is the same in all notations."""

    spelling: str
    characters: str


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of them."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """So often; without `most` there is no bound."""

    part: Node
    fewest: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of that name says."""

    name: str


Node = Text | Class | Row | Either | Times | Rule


@dataclass(frozen=True, slots=True)
class Language:
    """`rules[start]` and what it needs. Every rule that comes back to itself has read a bracket before."""

    rules: Mapping[str, Node]
    start: str = "start"

    def as_regex(self) -> str:
        """Of a language whose only rule is the start."""
        return _regex(self.rules[self.start])

    def as_lark(self) -> str:
        return "\n".join(f"{name}: {_lark(node)}" for name, node in self.rules.items())

    def as_gbnf(self) -> str:
        names = {self.start: "root"}
        return "\n".join(f"{names.get(name, name)} ::= {_gbnf(node, names)}" for name, node in self.rules.items())

    def has(self, text: str) -> bool:
        """Whether the whole text is a sentence."""
        return len(text) in _Recogniser(self.rules, text).ends(self.rules[self.start], 0)


@dataclass(slots=True)
class _Recogniser:
    """Where a node that begins at a place can end. No rule is left-recursive, so this ends."""

    rules: Mapping[str, Node]
    text: str
    known: dict[tuple[Node, int], frozenset[int]] = field(default_factory=dict)

    def ends(self, node: Node, position: int) -> frozenset[int]:
        key = (node, position)
        if key not in self.known:
            self.known[key] = frozenset(self._ends(node, position))
        return self.known[key]

    def _ends(self, node: Node, position: int) -> Iterable[int]:
        match node:
            case Text(text):
                return {position + len(text)} if self.text.startswith(text, position) else ()
            case Class(_, characters):
                found = position < len(self.text) and self.text[position] in characters
                return {position + 1} if found else ()
            case Row(parts):
                here = {position}
                for part in parts:
                    here = {end for start in here for end in self.ends(part, start)}
                return here
            case Either(parts):
                return {end for part in parts for end in self.ends(part, position)}
            case Times(part, fewest, most):
                return self._repeated(part, fewest, most, position)
            case Rule(name):
                return self.ends(self.rules[name], position)

    def _repeated(self, part: Node, fewest: int, most: int | None, position: int) -> set[int]:
        here, reached, count = {position}, {position} if fewest == 0 else set[int](), 0
        while here and (most is None or count < most):
            here = {end for start in here for end in self.ends(part, start)}
            count += 1
            if count >= fewest:
                if here <= reached:
                    break
                reached |= here
        return reached


def random_regex(seed: int) -> Language:
    """One that a regex can say."""
    return Language({"start": _node(random.Random(seed), 0, ())})


def random_grammar(seed: int) -> Language:
    """Some rules that use each other, and one that nests in brackets."""
    chance = random.Random(seed)
    names = tuple(f"part{number}" for number in range(chance.randint(1, 3)))
    rules: dict[str, Node] = {"start": Row((_node(chance, 1, names), Rule("nested")))}
    for index, name in enumerate(names):
        rules[name] = _node(chance, 1, names[index + 1 :])
    opening, closing = chance.choice((("(", ")"), ("<<", ">>"), ("begin ", " end"), ("[", "]")))
    inner = Row((Text(opening), Times(Rule("nested"), 0, 2), Text(closing)))
    rules["nested"] = Either((_leaf(chance), _leaf(chance), inner))
    return Language(rules)


def _node(chance: random.Random, depth: int, names: tuple[str, ...]) -> Node:
    if depth >= 3 or chance.random() < 0.25:
        return Rule(chance.choice(names)) if names and chance.random() < 0.5 else _leaf(chance)

    def parts() -> tuple[Node, ...]:
        return tuple(_node(chance, depth + 1, names) for _ in range(chance.randint(2, 4)))

    makers: tuple[Callable[[], Node], ...] = (
        lambda: Row(parts()),
        lambda: Row(parts()),
        lambda: Either(parts()),
        lambda: Times(_once(chance, depth + 1, names), *chance.choice(((0, 1), (1, 3), (0, None), (1, None), (2, 2)))),
    )
    return chance.choice(makers)()


def _once(chance: random.Random, depth: int, names: tuple[str, ...]) -> Node:
    """Nothing that is repeated already: the reader of GBNF loses the brackets between two repetitions."""
    while isinstance(node := _node(chance, depth, names), Times):
        pass
    return node


def _leaf(chance: random.Random) -> Node:
    if chance.random() < 0.5:
        return Class(*chance.choice(_CLASSES))
    return Text("".join(chance.choices(_CHARACTERS, k=chance.randint(1, 4))))


def _regex(node: Node) -> str:
    match node:
        case Text(text):
            return re.escape(text)
        case Class(spelling, _):
            return spelling
        case Row(parts):
            return "".join(map(_regex, parts))
        case Either(parts):
            return f"(?:{'|'.join(map(_regex, parts))})"
        case Times(part, fewest, most):
            return f"(?:{_regex(part)})" + _how_often(fewest, most)
        case Rule(name):
            raise ValueError(f"a regex has no rules, and this one needs {name}")


def _lark(node: Node) -> str:
    match node:
        case Text(text):
            return json.dumps(text, ensure_ascii=False)
        case Class(spelling, _):
            return f"/{spelling}/"
        case Row(parts):
            return " ".join(map(_lark, parts))
        case Either(parts):
            return f"({' | '.join(map(_lark, parts))})"
        case Times(part, fewest, most):
            return f"({_lark(part)})" + _how_often(fewest, most)
        case Rule(name):
            return name


def _gbnf(node: Node, names: Mapping[str, str]) -> str:
    match node:
        case Text(text):
            return json.dumps(text, ensure_ascii=False)
        case Class(spelling, _):
            return spelling
        case Row(parts):
            return " ".join(_gbnf(part, names) for part in parts)
        case Either(parts):
            return f"({' | '.join(_gbnf(part, names) for part in parts)})"
        case Times(part, fewest, most):
            return f"({_gbnf(part, names)})" + _how_often(fewest, most)
        case Rule(name):
            return names.get(name, name)


def _how_often(fewest: int, most: int | None) -> str:
    short = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((fewest, most))
    return short or f"{{{fewest},{most}}}"

"""Constraints to matchers, in a thread of its own: compiling may take a second, and the engine steps meanwhile."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.errors import CheckpointError, InvalidRequestError
from engine.grammar.matcher import Matcher, first_lines
from engine.grammar.reasons import schema_reason
from engine.grammar.source import check_size, refuse, to_lark
from engine.grammar.tokens import TokenBytes
from engine.grammar.worker import deep_stack_worker
from engine.request import Constraint, ConstraintKind

_PLACE = re.compile(r"^at [0-9]+\([0-9]+\): ")
# Compiled grammars that are kept, and of how much text. Each may take thirty times the memory of its text.
_MAX_CACHED = 64
_MAX_CACHED_CHARS = 2 << 20
# Of one step of one sequence, some milliseconds; a grammar that needs more ends its own request only.
_LIMITS = LLParserLimits(step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=50_000, verbose_errors=False)


class GrammarCompiler:
    """Compiles each constraint once for as long as it is used. The tokenizer is read with the first of them."""

    def __init__(
        self,
        read_tokens: Callable[[], TokenBytes],
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        max_cached: int = _MAX_CACHED,
    ) -> None:
        self._read_tokens = read_tokens
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._max_cached = max_cached
        self._worker: ThreadPoolExecutor | None = None
        # The rest belongs to the worker.
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._num_chars = 0  # of the compiled ones

    def prepare(self, constraint: Constraint, generated_token_ids: Sequence[int] = ()) -> Future[Matcher]:
        """A matcher that has taken what was generated before. The future has InvalidRequestError for what is wrong.

        Called by one thread.
        """
        if self._worker is None:
            self._worker = deep_stack_worker("grammar-compiler")
        return self._worker.submit(self._prepare, constraint, tuple(generated_token_ids))

    @property
    def num_cached(self) -> int:
        return len(self._compiled)

    def _prepare(self, constraint: Constraint, generated_token_ids: tuple[int, ...]) -> Matcher:
        matcher = Matcher(self._grammar(constraint).deep_copy())
        if not matcher.take(generated_token_ids):
            raise InvalidRequestError("generated_token_ids", f"do not satisfy the constraint; {matcher.failure}")
        return matcher

    def _grammar(self, constraint: Constraint) -> LLMatcher:
        grammar = self._compiled.get(constraint)
        if grammar is None:
            grammar = self._compiled[constraint] = self._compile(constraint)
            self._num_chars += _num_chars(constraint)
            while len(self._compiled) > self._max_cached or self._num_chars > _MAX_CACHED_CHARS:
                oldest, _ = self._compiled.popitem(last=False)
                self._num_chars -= _num_chars(oldest)
        self._compiled.move_to_end(constraint)
        return grammar

    def _compile(self, constraint: Constraint) -> LLMatcher:
        check_size(constraint)
        source = to_lark(constraint)
        tokens = self._tokens(constraint)
        try:
            grammar = LLMatcher(tokens, source, log_level=0, limits=_LIMITS)
            if not grammar.is_error():
                grammar.compute_bitmask()  # also fills its caches, of which each sequence gets a copy
        except BaseException as error:  # a panic of the library is no Exception
            refuse(constraint, f"cannot be compiled: {error}")
        if grammar.is_error():
            refuse(constraint, f"cannot be compiled: {_reason(constraint, grammar.get_error())}")
        return grammar

    def _tokens(self, constraint: Constraint) -> LLTokenizer:
        if self._tokenizer is None:
            try:
                tokens = self._read_tokens()
            except CheckpointError as error:
                refuse(constraint, f"is not possible with this checkpoint: {error}")
            if not self._eos_token_ids:
                refuse(constraint, "is not possible with this checkpoint: it names no end-of-sequence token")
            self._tokenizer = _build_tokenizer(tokens, self._vocab_size, self._eos_token_ids)
        return self._tokenizer


def _num_chars(constraint: Constraint) -> int:
    return len(constraint.text) + sum(map(len, constraint.choices))


def _reason(constraint: Constraint, error: str) -> str:
    """Places in the grammar mean something only to who wrote it; others get the reason alone."""
    reason = first_lines(error)
    if constraint.kind is ConstraintKind.GRAMMAR:
        return reason
    reason = _PLACE.sub("", reason.partition("\n   1 | ")[0]).removeprefix("failed to compile JSON schema: ")
    return schema_reason(reason) if constraint.kind is ConstraintKind.JSON_SCHEMA else reason


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokens: TokenBytes, vocab_size: int, eos_token_ids: list[int]) -> None:
        padding = [b""] * max(0, vocab_size - len(tokens.by_id))
        self.tokens = [*tokens.by_id[:vocab_size], *padding]
        self.special_token_ids = sorted({i for i in tokens.special_ids if i < vocab_size}.union(eos_token_ids))
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = None
        self.built: LLTokenizer | None = None

    def __call__(self, text: bytes) -> list[int]:
        """One way to spell a text, for grammars that force one."""
        return [] if self.built is None else self.built.greedy_tokenize(text.decode("utf-8", "replace"))


def _build_tokenizer(tokens: TokenBytes, vocab_size: int, eos_token_ids: list[int]) -> LLTokenizer:
    vocabulary = _Vocabulary(tokens, vocab_size, eos_token_ids)
    vocabulary.built = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocab_size, eos_token=eos_token_ids)
    return vocabulary.built

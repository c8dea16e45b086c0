"""What sampling one request takes, worked out once per request."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import Request

# Below this a temperature divides logits into infinities; the distribution is a single token long before.
_MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The work that a request's parameters ask for. Token ids outside the vocabulary are left out."""

    greedy: bool
    penalised: bool
    constrained: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    allowed: tuple[int, ...]
    bias: tuple[tuple[int, float], ...]
    bad_words: tuple[tuple[int, ...], ...]
    min_tokens: int
    end_token_ids: tuple[int, ...]  # cannot be chosen before min_tokens were generated

    @classmethod
    def of(cls, request: Request, vocab_size: int, eos_token_ids: tuple[int, ...]) -> SamplingPlan:
        """The plan of a request for a model of that vocabulary and those end-of-sequence tokens."""
        sampling, stop = request.sampling, request.stop
        return cls(
            # top_k 1 leaves no choice; as greedy it also has no choice among equals.
            greedy=sampling.temperature < _MIN_TEMPERATURE or sampling.top_k == 1,
            penalised=(
                sampling.repetition_penalty != 1.0
                or sampling.presence_penalty != 0.0
                or sampling.frequency_penalty != 0.0
            ),
            constrained=request.constraint is not None,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            allowed=tuple(i for i in sampling.allowed_token_ids if 0 <= i < vocab_size),
            bias=tuple((i, bias) for i, bias in sampling.logit_bias.items() if 0 <= i < vocab_size),
            bad_words=tuple(w for w in sampling.bad_words if w and all(0 <= i < vocab_size for i in w)),
            min_tokens=stop.min_tokens,
            end_token_ids=tuple(i for i in {*eos_token_ids, *stop.stop_token_ids} if 0 <= i < vocab_size),
        )

    @property
    def edits(self) -> bool:
        """Whether logits are changed before the choice, at least for some of the tokens."""
        return bool(
            self.allowed or self.bias or self.bad_words or self.min_tokens or self.penalised or self.constrained
        )

    def banned(self, token_ids: list[int], num_generated: int) -> list[int]:
        """Tokens that must not come next. `token_ids` are all so far, the last `num_generated` of them output."""
        banned = list(self.end_token_ids) if num_generated < self.min_tokens else []
        for *prefix, last in self.bad_words:
            if len(prefix) <= num_generated and token_ids[len(token_ids) - len(prefix) :] == prefix:
                banned.append(last)
        return banned

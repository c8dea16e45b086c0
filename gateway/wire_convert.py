"""The only place of the gateway where wire types become domain types and back."""

from __future__ import annotations

from collections.abc import Sequence

from muster import v1 as wire

from gateway.embedding_request import EmbeddingRequest, PoolingMethod
from gateway.generation_request import (
    Constraint,
    ConstraintKind,
    FinishReason,
    GenerationRequest,
    Sampling,
    TokenLogprob,
)
from gateway.ranks import GatewayPeer, LoadSnapshot, Rank, RankLoad, RankState, Roster

_STATES = {
    wire.RANK_STATE_MISSING: RankState.MISSING,
    wire.RANK_STATE_JOINING: RankState.JOINING,
    wire.RANK_STATE_READY: RankState.READY,
    wire.RANK_STATE_DRAINING: RankState.DRAINING,
    wire.RANK_STATE_LOST: RankState.LOST,
}
_PHASES = {
    wire.ENGINE_PHASE_STARTING: "starting",
    wire.ENGINE_PHASE_LOADING_WEIGHTS: "loading_weights",
    wire.ENGINE_PHASE_FITTING_CACHE: "fitting_cache",
    wire.ENGINE_PHASE_WARMING_UP: "warming_up",
    wire.ENGINE_PHASE_FORMING_GROUP: "forming_group",
    wire.ENGINE_PHASE_SERVING: "serving",
}
_FINISH_REASONS: dict[int, FinishReason] = {
    wire.FINISH_REASON_STOP: FinishReason.STOP,
    wire.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    wire.FINISH_REASON_ABORT: FinishReason.ABORT,
}
_TO_FINISH_REASONS = {
    FinishReason.STOP: wire.FINISH_REASON_STOP,
    FinishReason.LENGTH: wire.FINISH_REASON_LENGTH,
    FinishReason.ABORT: wire.FINISH_REASON_ABORT,
}

_POOLING_METHODS = {
    PoolingMethod.MEAN: wire.POOLING_METHOD_MEAN,
    PoolingMethod.LAST: wire.POOLING_METHOD_LAST,
}


def to_roster(roster: wire.Roster, scope: frozenset[int] | None = None) -> Roster:
    """Its gateways are those that share ranks of `scope` with this one; None means all ranks."""
    return Roster(
        sequence=roster.sequence,
        head_incarnation=roster.head_incarnation,
        ranks={entry.rank: _to_rank(entry) for entry in roster.ranks},
        gateways=tuple(sorted(gateway.name for gateway in roster.gateways if _shares(gateway, scope))),
        peers=tuple(GatewayPeer(peer.name, peer.host_id, tuple(peer.targets)) for peer in roster.gateways),
    )


def _shares(gateway: wire.GatewayEntry, scope: frozenset[int] | None) -> bool:
    return scope is None or not gateway.ranks or not scope.isdisjoint(gateway.ranks)


def _to_rank(entry: wire.RankEntry) -> Rank:
    return Rank(
        rank=entry.rank,
        state=_STATES.get(entry.state, RankState.UNKNOWN),
        incarnation=entry.incarnation,
        host=entry.host,
        host_id=entry.host_id,
        targets=tuple(entry.targets),
        model=entry.model if entry.HasField("model") else None,
        phase=_PHASES.get(entry.phase, ""),
        phase_done=entry.phase_done,
        phase_total=entry.phase_total,
        reason=entry.reason,
        since_s=entry.since.ToMilliseconds() / 1000 if entry.HasField("since") else None,
    )


def to_load_snapshot(snapshot: wire.WatchLoadResponse) -> LoadSnapshot:
    return LoadSnapshot(
        sequence=snapshot.sequence,
        head_incarnation=snapshot.head_incarnation,
        loads=tuple(_to_rank_load(load) for load in snapshot.loads),
    )


def _to_rank_load(load: wire.RankLoad) -> RankLoad:
    stats = load.stats

    def total(name: str) -> int | None:
        return getattr(stats, name) if stats.HasField(name) else None  # type: ignore[arg-type]

    return RankLoad(
        rank=load.rank,
        incarnation=load.incarnation,
        age_s=load.age_ms / 1000,
        waiting=stats.waiting,
        running=stats.running,
        kv_usage=stats.kv_usage if stats.HasField("kv_usage") else None,
        waiting_tokens=total("waiting_tokens"),
        prompt_tokens_total=total("prompt_tokens_total"),
        generated_tokens_total=total("generated_tokens_total"),
        prefix_cache_queries_total=total("prefix_cache_queries_total"),
        prefix_cache_hits_total=total("prefix_cache_hits_total"),
        preemptions_total=total("preemptions_total"),
        group_steps_total=total("group_steps_total"),
        dummy_steps_total=total("dummy_steps_total"),
        exchanged_bytes_total=total("exchanged_bytes_total"),
    )


def to_finish_reason(reason: int) -> FinishReason:
    """A reason this schema does not know counts as STOP: finished, for a reason we cannot name."""
    return _FINISH_REASONS.get(reason, FinishReason.STOP)


def from_finish_reason(reason: FinishReason | None) -> wire.FinishReason.ValueType:
    return wire.FINISH_REASON_UNSPECIFIED if reason is None else _TO_FINISH_REASONS[reason]


def to_logprobs(entries: Sequence[wire.TokenLogprobs]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            token_id=entry.token_id,
            logprob=entry.logprob if entry.HasField("logprob") else None,
            rank=entry.rank,
            top=tuple(zip(entry.top_token_ids, entry.top_logprobs, strict=True)),
        )
        for entry in entries
    )


def from_request(
    request: GenerationRequest,
    *,
    request_id: str,
    seed: int,
    max_tokens: int,
    generated_token_ids: Sequence[int],
    with_prompt_logprobs: bool,
    defaults: wire.DefaultSampling,
) -> wire.GenerateRequest:
    """One choice for one rank. `generated_token_ids` came from a rank that was lost; this one goes on after them."""
    return wire.GenerateRequest(
        request_id=request_id,
        prompt_token_ids=request.prompt_token_ids,
        generated_token_ids=generated_token_ids,
        sampling=_from_sampling(request.sampling, seed, defaults),
        stop=wire.StopConditions(
            max_tokens=max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=request.stop_token_ids,
            ignore_eos=request.ignore_eos,
        ),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs if with_prompt_logprobs else None,
        priority=request.priority,
        cache_salt=request.cache_salt,
        constraint=None if request.constraint is None else _from_constraint(request.constraint),
    )


def from_embedding_request(request: EmbeddingRequest, inputs: Sequence[Sequence[int]]) -> wire.EmbedRequest:
    """A batch of the request's inputs for one rank."""
    return wire.EmbedRequest(
        inputs=[wire.TokenSequence(token_ids=tokens) for tokens in inputs],
        pooling=_POOLING_METHODS[request.pooling],
        dimensions=request.dimensions,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _from_constraint(constraint: Constraint) -> wire.Constraint:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return wire.Constraint(json_schema=constraint.text)
        case ConstraintKind.JSON_OBJECT:
            return wire.Constraint(json_object=True)
        case ConstraintKind.REGEX:
            return wire.Constraint(regex=constraint.text)
        case ConstraintKind.CHOICE:
            return wire.Constraint(choice=wire.ChoiceConstraint(values=constraint.choices))
        case ConstraintKind.GRAMMAR:
            return wire.Constraint(grammar=constraint.text)


def to_constraint(constraint: wire.Constraint, param: str) -> Constraint | None:
    """None for one that sets nothing, or something this schema does not know. `param` is where it stands."""
    name = constraint.WhichOneof("kind")
    if name is None or (name == "json_object" and not constraint.json_object):
        return None
    kind, param = ConstraintKind(name), f"{param}.{name}"
    if kind is ConstraintKind.CHOICE:
        return Constraint(kind, choices=tuple(constraint.choice.values), param=param)
    return Constraint(kind, "" if kind is ConstraintKind.JSON_OBJECT else getattr(constraint, name), param=param)


def _from_sampling(sampling: Sampling, seed: int, defaults: wire.DefaultSampling) -> wire.SamplingParams:
    """The caller's values, else the checkpoint's recommendations, else absent: the contract's defaults."""
    params = wire.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=seed,
        logit_bias=sampling.logit_bias,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=[wire.TokenSequence(token_ids=word) for word in sampling.bad_words],
    )
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        if not params.HasField(name) and defaults.HasField(name):
            setattr(params, name, getattr(defaults, name))
    return params


def to_sampling(params: wire.SamplingParams) -> Sampling:
    def value(name: str) -> float | None:
        return getattr(params, name) if params.HasField(name) else None  # type: ignore[arg-type]

    return Sampling(
        temperature=value("temperature"),
        top_p=value("top_p"),
        top_k=params.top_k if params.HasField("top_k") else None,
        min_p=value("min_p"),
        presence_penalty=value("presence_penalty"),
        frequency_penalty=value("frequency_penalty"),
        repetition_penalty=value("repetition_penalty"),
        seed=params.seed if params.HasField("seed") else None,
        logit_bias=dict(params.logit_bias),
        allowed_token_ids=tuple(params.allowed_token_ids),
        bad_words=tuple(tuple(word.token_ids) for word in params.bad_words),
    )

"""Who may join: the comparison of an engine with the deployment, field by field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from muster import v1 as wire

MAX_NAME_LENGTH = 255
MAX_TARGETS = 16


class Fault(Enum):
    """What kind of mistake a rejection is; the error table gives each kind its gRPC status."""

    INVALID = "the frame itself is wrong"
    MISMATCH = "the engine's settings differ from the deployment's"
    TAKEN = "somebody else has the rank, and lives"
    HELD = "somebody else has the rank, and may be dead"
    FULL = "no rank is free"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One field that differs."""

    field: str
    head_value: str
    engine_value: str
    fix: str

    def describe(self) -> str:
        return f"the head has {self.head_value}, the engine has {self.engine_value}; {self.fix}"


class Rejection(Exception):
    """Ends one Register stream and nothing else."""

    def __init__(self, fault: Fault, reason: str, message: str, mismatches: tuple[Mismatch, ...] = ()) -> None:
        details = "; ".join(f"{mismatch.field}: {mismatch.describe()}" for mismatch in mismatches)
        super().__init__(f"{message}: {details}" if details else message)
        self.fault = fault
        self.reason = reason
        self.mismatches = mismatches


@dataclass(frozen=True, slots=True)
class Rules:
    """What every engine of the deployment must agree with."""

    deployment_id: str
    data_parallel_size: int
    protocol_min: int
    protocol_max: int
    product_version: str
    configuration: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)  # settings that should be equal too
    max_data_parallel_size: int = 0  # to which engines may join beyond data_parallel_size; less: none may

    @property
    def most_ranks(self) -> int:
        return max(self.data_parallel_size, self.max_data_parallel_size)


@dataclass(frozen=True, slots=True)
class Introduction:
    """An engine's Hello."""

    protocol_min: int
    protocol_max: int
    product_version: str
    deployment_id: str
    rank: int | None
    data_parallel_size: int | None
    host: str
    host_id: str
    pid: int
    incarnation: int
    local: bool
    headless: bool
    configuration: Mapping[str, str]
    accepted_by: int = 0  # the head that accepted it last; 0 when none has

    @property
    def process(self) -> tuple[str, int, int]:
        """What tells processes apart."""
        return self.host_id, self.pid, self.incarnation

    def is_same_process(self, other: Introduction) -> bool:
        return self.process == other.process


@dataclass(frozen=True, slots=True)
class Offer:
    """An engine's Ready: where it serves what. `model` is passed on as it came."""

    targets: tuple[str, ...]
    model: wire.ModelInfo
    capabilities: tuple[str, ...]


def check_introduction(hello: Introduction, rules: Rules) -> int:
    """The protocol revision that both sides speak; raises Rejection naming every field that differs."""
    _check_names(hello)
    protocol = _common_protocol(hello, rules)
    wrong = [
        *_deployment_mismatches(hello, rules),
        *_size_mismatches(hello, rules),
        *_configuration_mismatches(hello.configuration, rules.configuration),
    ]
    out_of_range = _range_mismatches(hello, rules)
    if wrong:
        is_other = wrong[0].field == "deployment_id"
        raise Rejection(
            Fault.MISMATCH,
            "DEPLOYMENT_MISMATCH" if is_other else "CONFIGURATION_MISMATCH",
            f"the engine on {hello.host or 'an unnamed host'} does not fit this deployment",
            (*wrong, *out_of_range),
        )
    if out_of_range:
        raise Rejection(Fault.INVALID, "RANK_OUT_OF_RANGE", "there is no such rank", tuple(out_of_range))
    return protocol


def warnings_about(hello: Introduction, rules: Rules) -> list[str]:
    """Differences that are allowed but worth a line in the log."""
    found = []
    if hello.product_version != rules.product_version:
        found.append(
            f"it runs version {hello.product_version or 'unknown'}, the head runs {rules.product_version};"
            " use one version everywhere unless this is a rolling upgrade"
        )
    found += [
        f"it has {key} {hello.configuration[key]!r}, the head {rules.advice[key]!r}; it serves, but unlike the others "
        f"unless that is meant: give the same --{key} on every node"
        for key in sorted(rules.advice)
        if key in hello.configuration and hello.configuration[key] != rules.advice[key]
    ]
    unknown = sorted(set(hello.configuration) - set(rules.configuration) - set(rules.advice))
    if unknown:
        found.append(f"the head cannot compare its settings {', '.join(unknown)}")
    return found


def check_offer(offer: Offer, served: Offer | None) -> None:
    """Compares a Ready with what another rank already serves; raises Rejection."""
    _check_offer_itself(offer)
    if served is None:
        return
    mine, theirs = offer.model, served.model
    names, their_names = ",".join(mine.served_model_names), ",".join(theirs.served_model_names)
    pairs = [
        ("model.fingerprint", theirs.fingerprint, mine.fingerprint, "load the same checkpoint with the same --dtype"),
        ("model.max_model_len", theirs.max_model_len, mine.max_model_len, "give --max-model-len on every node"),
        ("model.block_size", theirs.block_size, mine.block_size, "give the same --block-size on every node"),
        ("model.served_model_names", their_names, names, "give the same --served-model-name on every node"),
    ]
    wrong = tuple(
        Mismatch(name, str(head) or "nothing", str(engine) or "nothing", fix)
        for name, head, engine, fix in pairs
        if head != engine
    )
    if wrong:
        raise Rejection(Fault.MISMATCH, "MODEL_MISMATCH", "the ranks that are ready serve something else", wrong)


def _check_names(hello: Introduction) -> None:
    """These are shown to people, in logs and terminals."""
    wrong = tuple(
        Mismatch(name, f"room for {MAX_NAME_LENGTH} printable characters", f"{value[:40]!r}…", "send a plain name")
        for name, value in (
            ("host", hello.host),
            ("host_id", hello.host_id),
            ("product_version", hello.product_version),
        )
        if len(value) > MAX_NAME_LENGTH or not value.isprintable()
    )
    if wrong:
        raise Rejection(Fault.INVALID, "INVALID_HELLO", "the Hello frame cannot be shown", wrong)


def _common_protocol(hello: Introduction, rules: Rules) -> int:
    newest = min(hello.protocol_max, rules.protocol_max)
    if newest >= max(hello.protocol_min, rules.protocol_min) and hello.protocol_min <= hello.protocol_max:
        return newest
    difference = Mismatch(
        "protocol",
        f"revisions {rules.protocol_min} to {rules.protocol_max}",
        f"revisions {hello.protocol_min} to {hello.protocol_max}",
        "install versions of head and engine that share a revision",
    )
    raise Rejection(Fault.MISMATCH, "PROTOCOL_MISMATCH", "head and engine share no protocol", (difference,))


def _deployment_mismatches(hello: Introduction, rules: Rules) -> list[Mismatch]:
    if hello.deployment_id in ("", rules.deployment_id):
        return []
    fix = "point the engine to the head of its own deployment, or give both the same --deployment-id"
    return [Mismatch("deployment_id", repr(rules.deployment_id), repr(hello.deployment_id), fix)]


def _size_mismatches(hello: Introduction, rules: Rules) -> list[Mismatch]:
    if hello.data_parallel_size in (None, rules.data_parallel_size):
        return []
    fix = "give the same --data-parallel-size on every node"
    return [Mismatch("data_parallel_size", str(rules.data_parallel_size), str(hello.data_parallel_size), fix)]


def _range_mismatches(hello: Introduction, rules: Rules) -> list[Mismatch]:
    if hello.rank is None or hello.rank < rules.most_ranks:
        return []
    ranks = "only rank 0" if rules.most_ranks == 1 else f"ranks 0 to {rules.most_ranks - 1}"
    fix = "check --data-parallel-start-rank and --data-parallel-size-local of the engine's node"
    if rules.most_ranks > rules.data_parallel_size:
        fix += ", or raise the head's --max-data-parallel-size"
    return [Mismatch("rank", ranks, f"rank {hello.rank}", fix)]


def _configuration_mismatches(engine: Mapping[str, str], head: Mapping[str, str]) -> list[Mismatch]:
    return [
        Mismatch(
            f"configuration[{key}]",
            repr(head[key]),
            repr(engine[key]) if key in engine else "nothing",
            f"give the same --{key.replace('_', '-')} on every node",
        )
        for key in sorted(head)
        if engine.get(key) != head[key]
    ]


def _check_offer_itself(offer: Offer) -> None:
    wrong = []
    if not offer.targets or any(not target.strip() for target in offer.targets):
        fix = "send the engine's gRPC target, for example dns:///node2:41231"
        wrong.append(Mismatch("targets", "room for at least one target", "none or an empty one", fix))
    elif unreachable := [target for target in offer.targets if _is_wildcard(target)]:
        fix = (
            "advertise an address that gateways can dial, with --advertise-host (muster serve: --engine-advertise-host)"
        )
        wrong.append(Mismatch("targets", "no host to dial there", ", ".join(unreachable), fix))
    elif len(offer.targets) > MAX_TARGETS:
        fix = "send the few that gateways can reach"
        wrong.append(Mismatch("targets", f"room for {MAX_TARGETS}", str(len(offer.targets)), fix))
    if not offer.model.fingerprint:
        wrong.append(Mismatch("model.fingerprint", "to compare it", "nothing", "send the loaded model's facts"))
    if wrong:
        raise Rejection(Fault.INVALID, "INVALID_READY", "the Ready frame is incomplete", tuple(wrong))


def _is_wildcard(target: str) -> bool:
    """True for an address that means "all of mine" to its owner and "myself" to whoever dials it."""
    host = target.removeprefix("dns:").lstrip("/").rpartition(":")[0]
    return host in ("0.0.0.0", "[::]", "::", "*")

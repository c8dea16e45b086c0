"""`muster drain`, `undrain`, `restart`, `scale` and the like: the head's AdminService, a line per rank."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from muster import v1 as wire

from services.cli import flag_table
from services.cli.flag import Flag, FlagValueError, read_flags
from services.cli.flag_values import rank_list, whole_number
from services.cli.head_target import head_target_of
from services.cli.security_flags import dialer_of
from services.rpc.channels import Dialer
from services.rpc.errors import describe

# For the answers that are due at once; a drain may take as long as its requests.
_ANSWER_S = 30.0

_LOG_LEVELS = {
    "debug": wire.LOG_LEVEL_DEBUG,
    "info": wire.LOG_LEVEL_INFO,
    "warning": wire.LOG_LEVEL_WARNING,
    "error": wire.LOG_LEVEL_ERROR,
}


class UnknownRankError(Exception):
    """The deployment has no such rank; the message names it and those that there are."""


_Stub = wire.AdminServiceStub
_Results = Sequence[wire.RankResult]


def run_drain(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 1 when a rank was not drained."""
    values = _values(flag_table.DRAIN, namespace, environment)
    selector = _selector(namespace.ranks)

    def drain(stub: _Stub) -> Iterator[_Results]:
        yield stub.Drain(wire.DrainRequest(selector=selector, timeout=_duration(values["timeout"]))).results

    return _operate("drain", values, drain)


def run_undrain(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 1 when a rank does not take requests."""
    values = _values(flag_table.UNDRAIN, namespace, environment)
    selector = _selector(namespace.ranks)

    def undrain(stub: _Stub) -> Iterator[_Results]:
        yield stub.Undrain(wire.UndrainRequest(selector=selector), timeout=_ANSWER_S).results

    return _operate("undrain", values, undrain)


def run_restart(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Rank by rank, so that each is told as it is done and Ctrl-C leaves the rest alone."""
    values = _values(flag_table.RESTART, namespace, environment)
    selector = _selector(namespace.ranks)

    def restart(stub: _Stub) -> Iterator[_Results]:
        existing = _all_ranks(values)
        for rank in _checked(selector.ranks, existing) or existing:
            request = wire.RestartRequest(
                selector=wire.RankSelector(ranks=[rank]),
                timeout=_duration(values["timeout"]),
                ready_timeout=_duration(values["ready_timeout"]),
            )
            results = stub.Restart(request).results
            yield results
            if any(result.code for result in results):
                return

    return _operate("restart", values, restart)


def run_scale(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 1 when a rank did not come or go."""
    values = _values(flag_table.SCALE, namespace, environment)
    try:
        size = whole_number(1, 4096)(namespace.size)
    except ValueError as error:
        raise FlagValueError(f"N: {namespace.size!r} {error}") from None
    timeout, ready_timeout = _duration(values["timeout"]), _duration(values["ready_timeout"])

    def scale(stub: _Stub) -> Iterator[_Results]:
        request = wire.ScaleRequest(data_parallel_size=size, timeout=timeout, ready_timeout=ready_timeout)
        response = stub.Scale(request)
        yield response.results
        ranks = response.data_parallel_size
        print(f"{ranks} rank{'s' if ranks != 1 else ''} now")

    return _operate("scale", values, scale)


def run_reset_prefix_cache(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 1 when a rank did not forget its cache."""
    values = _values(flag_table.ASKING_HEAD, namespace, environment)
    request = wire.ResetPrefixCacheRequest(selector=_selector(namespace.ranks))

    def reset(stub: _Stub) -> Iterator[_Results]:
        yield stub.ResetPrefixCache(request, timeout=_ANSWER_S).results

    return _operate("reset-prefix-cache", values, reset)


def run_log_level(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 1 when a rank did not take the level."""
    values = _values(flag_table.ASKING_HEAD, namespace, environment)
    if namespace.level not in _LOG_LEVELS:
        raise FlagValueError(f"LEVEL: {namespace.level!r} is not known; give {', '.join(_LOG_LEVELS)}")
    request = wire.SetLogLevelRequest(selector=_selector(namespace.ranks), level=_LOG_LEVELS[namespace.level])

    def set_level(stub: _Stub) -> Iterator[_Results]:
        yield stub.SetLogLevel(request, timeout=_ANSWER_S).results
        print(f"head: log level {namespace.level}")

    return _operate("log-level", values, set_level)


def _values(flags: Sequence[Flag], namespace: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    values = read_flags(flags, namespace, environment)
    return {**values, "head_target": head_target_of(values)}


def _operate(name: str, values: Mapping[str, Any], work: Callable[[_Stub], Iterator[_Results]]) -> int:
    failed = False
    started = time.monotonic()
    target: str = values["head_target"]
    dialer = dialer_of(values)
    with _told(name, target, dialer), dialer.dial_blocking(target) as channel:
        for results in work(wire.AdminServiceStub(channel)):
            for result in results:
                failed = failed or bool(result.code)
                print(result_line(result, time.monotonic() - started), flush=True)
        return int(failed)
    return 1


def result_line(result: wire.RankResult, seconds: float) -> str:
    if not result.code:
        return f"rank {result.rank}: {result.message} ({seconds:.1f} s)"
    codes = {code.value[0]: code.name for code in grpc.StatusCode}
    name = codes.get(result.code, str(result.code)).lower().replace("_", " ")
    return f"rank {result.rank}: failed ({name}): {result.message}"


@contextmanager
def _told(name: str, target: str, dialer: Dialer) -> Iterator[None]:
    """Turns a failed call into words on stderr."""
    try:
        yield
    except UnknownRankError as error:
        print(f"muster {name}: {error}", file=sys.stderr)
    except grpc.RpcError as error:
        described = describe(error)
        if described.code is grpc.StatusCode.UNAVAILABLE:
            trouble = dialer.trouble_with(target)
            print(f"muster {name}: no head answers at {target}{f' ({trouble})' if trouble else ''}. "
                  "Another address: --head-target HOST:PORT", file=sys.stderr)  # fmt: skip
        else:
            print(f"muster {name}: {described.message}", file=sys.stderr)


def _all_ranks(values: Mapping[str, Any]) -> Sequence[int]:
    with dialer_of(values).dial_blocking(values["head_target"]) as channel:
        answer = wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest(), timeout=_ANSWER_S)
    return range(answer.roster.data_parallel_size)


def _checked(ranks: Sequence[int], existing: Sequence[int]) -> Sequence[int]:
    """Before the first of them is touched. Raises UnknownRankError."""
    unknown = [rank for rank in ranks if rank not in existing]
    if unknown:
        names = ", ".join(map(str, unknown))
        verb = "does" if len(unknown) == 1 else "do"
        raise UnknownRankError(
            f"RANKS: {names} {verb} not exist; the deployment has ranks 0 to {existing[-1]}. Nothing was restarted"
        )
    return ranks


def _selector(text: str) -> wire.RankSelector:
    """All ranks are an empty selector."""
    try:
        return wire.RankSelector(ranks=() if text == "all" else rank_list(text))
    except ValueError as error:
        raise FlagValueError(f"RANKS: {text!r} {error}") from None


def _duration(seconds: Any) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration

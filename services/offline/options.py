"""From the flags of `muster serve` to the processes of an offline run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.cli import flag_table
from services.cli.flag import FlagValueError
from services.cli.parser import build_parser
from services.cli.serve_command import serve_options
from services.launcher import plan
from services.launcher.plan import ChildSpec, Places
from services.models.checkpoint import ModelNotFoundError, resolve_model


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What an offline run starts: a process per rank."""

    ranks: tuple[ChildSpec, ...]
    served_model_name: str
    max_running: int  # requests that all ranks together run at a time


def offline_run(arguments: Sequence[str], environment: Mapping[str, str]) -> OfflineRun:
    """`arguments` are MODEL and flags as `muster serve` takes them, as far as they have a meaning without a server.

    Raises FlagValueError, which names the flag and the fix.
    """
    namespace, unknown = build_parser().parse_known_args(["serve", *arguments])
    if unknown:
        raise FlagValueError(f"{unknown[0]} after --: there is no such flag of muster serve")
    offline = {flag.name for flag in flag_table.OFFLINE}
    for flag in flag_table.SERVE:
        if flag.name not in offline and getattr(namespace, flag.field) is not None:
            raise FlagValueError(
                f"{flag.name} after --: a run of its own has no ports and no other nodes; leave it out, or start "
                "`muster serve` with it and give the batch its --url"
            )
    variables = {flag.variable for flag in flag_table.OFFLINE}
    kept = {key: value for key, value in environment.items() if key in variables}
    if namespace.log_level is None and flag_table.LOG_LEVEL.variable not in kept:
        namespace.log_level = "warning"
    options = serve_options(namespace, kept)
    try:
        model = resolve_model(options.model, options.model_cache)
    except ModelNotFoundError as error:
        raise FlagValueError(str(error)) from None
    names = options.served_model_name or (model.name,)
    threads = plan.threads_per_rank(options, plan.num_usable_cores())
    places = Places(Path(), model.path, names, threads, engine_host="127.0.0.1")
    # The same flags as an engine's, read by the same code; those about its ports and its head have no effect.
    ranks = tuple(
        replace(spec, name=f"rank {number}", arguments=("offline-rank", *spec.arguments[1:]))
        for number, spec in enumerate(plan.plan_engines(options, places))
    )
    return OfflineRun(ranks, names[0], options.max_num_seqs * len(ranks))

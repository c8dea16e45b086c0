"""`muster serve`: flags to options, then the launcher."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping

from services.cli import flag_table
from services.cli.flag import FlagValueError, read_flags
from services.http_front import HttpFrontError
from services.launcher.combinations import FlagCombinationError, check
from services.launcher.devices import DeviceAssignmentError
from services.launcher.launcher import run_launcher
from services.launcher.options import ServeOptions
from services.launcher.runtime_directory import RuntimeDirectoryError
from services.models.checkpoint import ModelNotFoundError, resolve_model
from services.rpc.listening import ListenError
from services.rpc.security import SecurityError
from services.rpc.server import check_doors
from services.smg import check_smg


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    options = serve_options(namespace, environment)
    try:
        model = resolve_model(options.model, options.model_cache)
        names = options.served_model_name or (model.name,)
        variables = {flag.variable for flag in flag_table.ALL}
        return asyncio.run(run_launcher(options, model.path, names, own_variables=variables))
    except KeyboardInterrupt:
        # Before the launcher listens to signals, perhaps while the model is fetched: stopped on request, as later.
        print("muster serve: stopped before anything was started", file=sys.stderr)
        return 0
    except (DeviceAssignmentError, ListenError, ModelNotFoundError, RuntimeDirectoryError) as error:
        print(f"muster serve: {error}", file=sys.stderr)
        return 1


def serve_options(namespace: argparse.Namespace, environment: Mapping[str, str]) -> ServeOptions:
    """Raises FlagValueError for single values and contradictions."""
    options = ServeOptions(model=namespace.model, **read_flags(flag_table.SERVE, namespace, environment))
    try:
        check(options)
        check_doors(options.security)
        if options.smg:
            check_smg(options.security, options.api_key)
        if not options.headless:
            options.http_front.check()
    except (FlagCombinationError, HttpFrontError, SecurityError) as error:
        raise FlagValueError(str(error)) from None
    return options

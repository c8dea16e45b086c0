"""Options as `muster serve` with some flags has them."""

from __future__ import annotations

from services.cli import flag_table
from services.cli.flag import read_flags
from services.cli.parser import build_parser
from services.launcher.options import ServeOptions


def serve_options(flags: str = "") -> ServeOptions:
    namespace = build_parser().parse_args(["serve", *flags.split()])
    return ServeOptions(model=namespace.model, **read_flags(flag_table.SERVE, namespace, {}))

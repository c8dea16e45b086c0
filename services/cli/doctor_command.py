"""`muster doctor`: one screen about what would run on this machine."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from services.cli import flag_table
from services.cli.flag import read_flags
from services.doctor import host, places
from services.doctor.engine_side import engine_findings
from services.doctor.finding import Finding, Level, can_serve
from services.version import __version__


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    findings = diagnose(read_flags(flag_table.DOCTOR, namespace, environment))
    good = can_serve(findings)
    if namespace.json:
        shown = [{**asdict(finding), "level": finding.level.value} for finding in findings]
        print(json.dumps({"version": __version__, "can_serve": good, "findings": shown}, indent=2))
    else:
        print("\n".join(screen(findings, shutil.get_terminal_size((120, 24)).columns)))
    return 0 if good else 1


def diagnose(values: Mapping[str, Any]) -> list[Finding]:
    """`values` are those of flag_table.DOCTOR."""
    cache, address = values["model_cache"], values["data_parallel_address"] or "127.0.0.1"
    return [
        *engine_findings(cache, values["device"], values["dtype"], values["kernels"]),
        host.memory(),
        host.cores(),
        places.model(cache),
        places.port("HTTP port", values["host"], values["port"], "--port"),
        places.port("gRPC port", values["host"], values["grpc_port"], "--grpc-port"),
        places.port("head's port", address, values["data_parallel_rpc_port"], "--data-parallel-rpc-port"),
        places.sockets(values["runtime_dir"]),
        host.open_files(),
        host.clock(),
    ]


def screen(findings: Sequence[Finding], width: int) -> list[str]:
    """The findings, each with its fix below it unless all is well, and the sum of it last."""
    indent = max(len(finding.name) for finding in findings) + 8
    lines = []
    for finding in findings:
        first = f"{finding.level.value:<4}  {finding.name}".ljust(indent)
        lines += textwrap.wrap(first + finding.text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
        if finding.level is not Level.OK:
            fix = f"{' ' * indent}-> {finding.fix}"
            lines += textwrap.wrap(fix, width, subsequent_indent=" " * (indent + 3), break_on_hyphens=False)
    failed = [finding.name for finding in findings if finding.level is Level.FAIL]
    warned = [finding.name for finding in findings if finding.level is Level.WARN]
    result = f"Cannot serve like this: {', '.join(failed)}." if failed else "Ready to serve."
    return [*lines, "", result + (f" Warnings: {', '.join(warned)}." if warned else "")]

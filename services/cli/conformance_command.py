"""`muster conformance`: tries the rules of the contract on a running server and tells which it breaks."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping

import grpc

from services.cli import flag_table
from services.cli.flag import read_flags
from services.cli.security_flags import dialer_of
from services.conformance.attach_rules import ATTACH_RULES
from services.conformance.engine_server import EngineServer
from services.conformance.generate_rules import ENGINE_RULES
from services.conformance.rendezvous_rules import HEAD_RULES, HeadServer
from services.conformance.rules import Finding, Verdict, try_rules
from services.rpc.errors import describe

_MARKS = {Verdict.KEPT: "ok", Verdict.BROKEN: "BROKEN", Verdict.NOT_OFFERED: "-"}


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 0 when every rule is kept or not offered, 1 when one is broken or nobody answers."""
    values = read_flags(flag_table.CONFORMANCE, namespace, environment)
    return asyncio.run(_run(namespace.target, values, as_json=namespace.json))


async def _run(target: str, values: Mapping[str, object], *, as_json: bool) -> int:
    dialer = dialer_of(values)
    async with dialer.dial(target) as channel:
        findings: list[Finding] = []
        try:
            async for finding in _findings(channel, str(values["service"])):
                findings.append(finding)
                if not as_json:
                    _print(finding)
        except grpc.aio.AioRpcError as error:
            trouble = await asyncio.to_thread(dialer.trouble_with, target)
            print(f"muster conformance: {target}: {trouble or describe(error).message}", file=sys.stderr)
            return 1
    broken = [finding for finding in findings if finding.verdict is Verdict.BROKEN]
    if as_json:
        print(json.dumps([_as_json(finding) for finding in findings], indent=2))
    else:
        print(f"\n{len(findings) - len(broken)} of {len(findings)} rules kept or not offered, {len(broken)} broken")
    return 1 if broken else 0


async def _findings(channel: grpc.aio.Channel, service: str) -> AsyncIterator[Finding]:
    if service == "engine":
        async for finding in try_rules((*ENGINE_RULES, *ATTACH_RULES), await EngineServer.of(channel)):
            yield finding
    else:
        server = HeadServer(channel)
        await server.deployment()  # whether anybody is there
        async for finding in try_rules(HEAD_RULES, server):
            yield finding


def _print(finding: Finding) -> None:
    print(f"{_MARKS[finding.verdict]:7} {finding.name:20} {finding.sentence}", flush=True)
    if finding.seen:
        print(f"{'':28} {finding.seen}", flush=True)


def _as_json(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "rule": finding.sentence, "verdict": finding.verdict.value, "seen": finding.seen}

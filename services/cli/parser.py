"""The sub-commands of `muster` and the flags of each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from services.cli import flag_table
from services.cli.flag import Flag, HelpFormatter, Parser, add_flags
from services.version import __version__

_RANKS_HELP = '"all", or global ranks as in 0,2,4-7'
_PRECEDENCE = "Flags that name a MUSTER_ variable can be given by it too; the command line wins over the environment."


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="muster",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        description="Serve large language models with data parallelism over a documented gRPC contract.",
        epilog="Start with `muster serve`, then `muster chat`.",
    )
    parser.set_defaults(run=None, prog="muster")
    parser.add_argument("--version", action="version", version=f"muster {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _add_servers(commands)
    _add_clients(commands)
    return parser


def _add_servers(commands: Any) -> None:
    serve = _add(commands, "serve", "serve_command", flag_table.SERVE, "[MODEL] [flags]",
                 "Serve a model: head, engines and gateways of this node.")  # fmt: skip
    _add_model(serve)
    _add(commands, "head", "process_commands", flag_table.HEAD, "[flags]",
         "Run the head alone: ranks register here, gateways watch it.", function="run_head_command")  # fmt: skip
    engine = _add(commands, "engine", "process_commands", flag_table.ENGINE, "[MODEL] [flags]",
                  "Run the engine of one rank alone.", function="run_engine_command")  # fmt: skip
    _add_model(engine)
    rank = _add(commands, "offline-rank", "process_commands", flag_table.ENGINE, "MODEL [flags]", None,
                function="run_offline_rank_command")  # fmt: skip
    _add_model(rank)
    _add(commands, "gateway", "process_commands", flag_table.GATEWAY, "[flags]",
         "Run a gateway alone: REST and gRPC for clients.", function="run_gateway_command")  # fmt: skip


def _add_clients(commands: Any) -> None:
    chat = _add(commands, "chat", "chat_command", flag_table.CHAT, "[PROMPT] [flags]",
                "Talk to a running server; with a prompt or piped input, answer once.")  # fmt: skip
    chat.add_argument("prompt", nargs="*", metavar="PROMPT", help="question to answer once; without it, a conversation")
    batch = _add(commands, "run-batch", "batch_command", flag_table.RUN_BATCH,
                 "-i IN.jsonl -o OUT.jsonl [flags] [-- [MODEL] [flags of muster serve]]",
                 "Answer a file of requests, with a running server or without any.")  # fmt: skip
    batch.add_argument(
        "model_and_flags", nargs="*", metavar="MODEL", help="after --: model and flags of ranks to start"
    )
    certs = _add(commands, "certs", "certs_command", flag_table.CERTS, "[NODE ...] [flags]",
                 "Make an authority and certificates for development.")  # fmt: skip
    certs.add_argument("nodes", nargs="*", metavar="NODE", help="name or address of a node; one certificate for each")
    conformance = _add(commands, "conformance", "conformance_command", flag_table.CONFORMANCE, "TARGET [flags]",
                       "Try the rules of the contract on an engine or a head, of any language.")  # fmt: skip
    conformance.add_argument("target", metavar="TARGET", help="gRPC target, for example 127.0.0.1:41231")
    conformance.add_argument("--json", action="store_true", help="print the findings as JSON")
    status = _add(commands, "status", "status_command", flag_table.STATUS, "[flags]",
                  "Show ranks, states and load of a running deployment.")  # fmt: skip
    status.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    _add(commands, "top", "top_command", flag_table.TOP, "[flags]",
         "Watch ranks, load and tokens per second live; q leaves.")  # fmt: skip
    for name, flags, help_text in (
        ("drain", flag_table.DRAIN, "Let ranks finish their requests and give them no new ones."),
        ("undrain", flag_table.UNDRAIN, "Give drained ranks requests again."),
        ("restart", flag_table.RESTART, "Replace ranks one after another; no request fails."),
        ("reset-prefix-cache", flag_table.ASKING_HEAD, "Let ranks forget all cached prompt beginnings."),
    ):
        operation = _add(
            commands,
            name,
            "operate_command",
            flags,
            "RANKS [flags]",
            help_text,
            function=f"run_{name.replace('-', '_')}",
        )
        operation.add_argument("ranks", metavar="RANKS", help=_RANKS_HELP)
    scale = _add(commands, "scale", "operate_command", flag_table.SCALE, "N [flags]",
                 "Add or take away ranks of a running deployment; no request fails.", function="run_scale")  # fmt: skip
    scale.add_argument("size", metavar="N", help="number of ranks there shall be")
    level = _add(commands, "log-level", "operate_command", flag_table.ASKING_HEAD, "LEVEL [RANKS] [flags]",
                 "Change what the head and the engines of ranks log.", function="run_log_level")  # fmt: skip
    level.add_argument("level", metavar="LEVEL", help="debug, info, warning or error")
    level.add_argument("ranks", metavar="RANKS", nargs="?", default="all", help=_RANKS_HELP)
    doctor = _add(commands, "doctor", "doctor_command", flag_table.DOCTOR, "[flags]",
                  "Say what would run on this machine, what would not, and what to do about it.")  # fmt: skip
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add(commands, "fetch", "fetch_command", (flag_table.MODEL_CACHE,), "[flags]",
         "Fetch the default model and print its path.")  # fmt: skip
    _add(commands, "version", "version_command", (), "", "Print the versions of software and contract.")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL",
        help="a .gguf file or a Hugging Face directory [default: SmolLM2-135M-Instruct, fetched once]",
    )  # fmt: skip


def _add(
    commands: Any, name: str, module: str, flags: Sequence[Flag], usage: str, help_text: str | None, *,
    function: str = "run",
) -> argparse.ArgumentParser:  # fmt: skip
    """Without a help text the command is not listed."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        **({} if help_text is None else {"help": help_text}),
        description=help_text,
        usage=f"muster {name} {usage}".rstrip(),
        epilog=_PRECEDENCE if flags else None,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser, flags)

    def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
        command = getattr(import_module(f"services.cli.{module}"), function)
        return int(command(namespace, environment))

    names = tuple(name for flag in flags for name in (flag.name, flag.short) if name)
    parser.set_defaults(run=run, prog=f"muster {name}", flag_names=names)
    return parser

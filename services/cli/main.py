"""The `muster` command: picks the sub-command and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 refused by the head. Modules of a sub-command are imported when
it runs, so that `muster --help` and `muster status` start at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Everything else is imported under the `try` of `main`: Ctrl-C may come while that goes on.

EXIT_USAGE = 2
_OURS = {"engine", "gateway", "muster", "services"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `muster ARGUMENTS` (default: the process's own) and returns the exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:  # else it was told what that means
            print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `muster status | head`: the reader has enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    from services.cli.flag import FlagValueError
    from services.cli.foreign_flags import instead_of
    from services.cli.parser import build_parser
    from services.launcher.parent_death import end_with_parent

    end_with_parent()
    parser = build_parser()
    namespace, unknown = parser.parse_known_args(arguments)
    if namespace.run is None:
        parser.print_help()
        return EXIT_USAGE
    if unknown:
        given = sys.argv[1:] if arguments is None else arguments
        return _usage(namespace.prog, instead_of(given, unknown[0]) or _unknown_text(unknown[0], namespace.flag_names))
    try:
        return int(namespace.run(namespace, os.environ))
    except FlagValueError as error:
        return _usage(namespace.prog, error)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] in _OURS:
            raise
        return _usage(namespace.prog, _missing_text(missing.name))


def _unknown_text(argument: str, known: Sequence[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    from difflib import get_close_matches

    close = get_close_matches(argument.partition("=")[0], known, n=1)
    return f"unknown flag {argument}" + (f"; did you mean {close[0]}?" if close else "")


def _missing_text(module: str) -> str:
    return (
        f"the Python module {module} is not installed here, perhaps because muster was installed for its client only; "
        "install muster[cpu] or muster[cuda] to serve models, muster[gateway] for gateways, heads and these commands"
    )


def _usage(prog: str, error: Exception | str) -> int:
    print(f"{prog}: {error}\nSee `{prog} --help`.", file=sys.stderr)
    return EXIT_USAGE

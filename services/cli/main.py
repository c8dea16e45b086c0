"""The `muster` command: picks the sub-command and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 failure, 2 wrong usage, 3 refused by the head. Modules of a sub-command are imported when
it runs, so that `muster --help` and `muster status` start at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from services.cli.flag import FlagValueError
from services.cli.parser import build_parser
from services.launcher.parent_death import end_with_parent

EXIT_FAILURE = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `muster ARGUMENTS` (default: the process's own) and returns the exit code."""
    end_with_parent()
    parser = build_parser()
    namespace = parser.parse_args(arguments)
    if namespace.run is None:
        parser.print_help()
        return EXIT_USAGE
    try:
        return int(namespace.run(namespace, os.environ))
    except FlagValueError as error:
        return _usage(namespace.prog, error)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `muster status | head`: the reader has enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _usage(prog: str, error: Exception) -> int:
    print(f"{prog}: {error}\nSee `{prog} --help`.", file=sys.stderr)
    return EXIT_USAGE

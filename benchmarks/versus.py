"""Muster beside vLLM and llama.cpp on this machine: `python -m benchmarks.versus`.

Installs the peers into virtual environments of their own (--peers-dir), then lets everybody do the same work in turns,
A B A B, one server running at a time, and writes into --out: versus.json (everything), versus.md (tables of medians
and ratios), versus.png, and the servers' logs. With the defaults half an hour on two cores, after installing.

`--from FOLDER` makes tables and picture again from a race's versus.json; `--publish` also puts them into
docs/performance.md and README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.load.interruption import stop_on_signals
from benchmarks.peers import llama_cpp, muster, vllm
from benchmarks.peers.contestant import Contestant
from benchmarks.peers.documents import publish
from benchmarks.peers.picture import draw
from benchmarks.peers.race import Course, run_race
from benchmarks.peers.record import Entrant, Record, describe_commit, describe_machine
from benchmarks.peers.table import Report
from benchmarks.peers.venv import PeerError

_REPOSITORY = Path(__file__).resolve().parent.parent
_EVERYBODY = "muster vllm llama.cpp-t1 llama.cpp-t2 muster-dp2 muster-avx512 muster-avx2 muster-torch".split()


def main() -> int:
    args = arguments()
    stop_on_signals()
    try:
        record = Record.read(args.from_folder / "versus.json") if args.from_folder else race(args)
        if record is None:
            return 0
        folder = args.from_folder or args.out
        write(record, folder)
        if args.publish:
            publish(record, folder / "versus.png", _REPOSITORY)
    except (PeerError, ValueError, OSError) as error:
        print(f"versus: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("versus: interrupted; what was measured is in versus.json, see --from", file=sys.stderr)
        return 130
    failed = [leg for leg in record.legs if leg.error]
    return 1 if failed or not record.legs else 0


def race(args: argparse.Namespace) -> Record | None:
    """None when it was only to install."""
    peers = args.peers_dir.expanduser().resolve()
    peers.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.model or muster.default_model()
    if model.suffix != ".gguf" or not model.is_file():
        raise ValueError(f"--model {model}: this comparison needs a .gguf file, which all can be given")
    contestants = entered(args.only, model.resolve(), peers)
    if args.install_only:
        return None
    course = Course(tuple(args.concurrency), tuple(args.requests), args.words, args.max_tokens, args.seed)
    record = Record(
        date=time.strftime("%Y-%m-%d"),
        machine=describe_machine(),
        commit=describe_commit(),
        model=model.name,
        course=course,
        entrants=[Entrant.of(contestant) for contestant in contestants],
    )
    turns = {contestant.key: args.turns if counts(contestant) else args.other_turns for contestant in contestants}
    for leg in run_race(contestants, course, turns, args.out.resolve(), lambda line: print(line, flush=True)):
        record.legs.append(leg)
        record.write(args.out / "versus.json")
    return record


def counts(contestant: Contestant) -> bool:
    """Whether it takes part in the comparison: Muster with its defaults, and every setting of a peer."""
    return contestant.is_default or contestant.family != muster.FAMILY


def entered(keys: list[str], model: Path, peers: Path) -> list[Contestant]:
    """Installs what the chosen ones need."""
    found = {contestant.key: contestant for contestant in muster.contestants(model)}
    if "vllm" in keys:
        venv = vllm.install(peers)
        found["vllm"] = vllm.contestant(venv, vllm.dequantised(model, peers))
    if any(key.startswith("llama.cpp") for key in keys):
        found |= {peer.key: peer for peer in llama_cpp.contestants(llama_cpp.install(peers), model)}
    return [found[key] for key in keys]


def write(record: Record, folder: Path) -> None:
    report = Report(record)
    (folder / "versus.md").write_text(report.full())
    (folder / "readme.md").write_text(report.short())
    draw(record, folder / "versus.png")
    print(f"\n{report.full()}\nwritten into {folder}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help=".gguf file; default: the default model, fetched when needed")
    parser.add_argument(
        "--only", nargs="+", choices=_EVERYBODY, default=_EVERYBODY, metavar="KEY", help=f"of {' '.join(_EVERYBODY)}"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--other-turns", type=int, metavar="N", help="of Muster's other settings; default: --turns")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, nargs="+", default=[12, 24, 64], help="one number per concurrency")
    parser.add_argument("--words", type=int, default=128, help="words per prompt")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--seed", default="1", help="of the prompts")
    parser.add_argument("--peers-dir", type=Path, default=Path("~/.cache/muster/peers"))
    parser.add_argument("--out", type=Path, default=Path("versus"), help="folder for results [default: ./versus]")
    parser.add_argument("--install-only", action="store_true", help="install the peers and stop")
    parser.add_argument("--from", dest="from_folder", type=Path, metavar="FOLDER", help="run nothing, use this result")
    parser.add_argument("--publish", action="store_true", help="put the result into this checkout's documentation")
    args = parser.parse_args()
    args.other_turns = args.turns if args.other_turns is None else args.other_turns
    if len(args.requests) == 1:
        args.requests *= len(args.concurrency)
    if len(args.requests) != len(args.concurrency):
        parser.error(f"--requests has {len(args.requests)} numbers, --concurrency {len(args.concurrency)}")
    if min(args.turns, args.other_turns, args.words, args.max_tokens, *args.requests, *args.concurrency) < 1:
        parser.error("numbers must be at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())

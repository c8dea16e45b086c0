"""`python -m engine.doctor`: the findings as one JSON array on standard output."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from engine.doctor.diagnosis import diagnose


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.doctor", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="directory whose folder native holds the kernels")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--kernels", default="auto", choices=["auto", "native", "torch"])
    arguments = parser.parse_args()
    findings = diagnose(arguments.cache, arguments.device, arguments.dtype, arguments.kernels)
    json.dump([{**asdict(finding), "level": finding.level.value} for finding in findings], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

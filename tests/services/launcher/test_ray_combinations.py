"""Flags that contradict --data-parallel-backend ray are refused with their names, values and the fix."""

from __future__ import annotations

import pytest

from services.launcher.combinations import FlagCombinationError, check
from tests.services.launcher.serve_options import serve_options

RAY = "--data-parallel-backend ray"

REFUSED = [
    ("--ray-address h:6379", ["--ray-address h:6379", "--data-parallel-backend mp", RAY]),
    ("--ray-placement span", ["--ray-placement span", "--data-parallel-backend mp", RAY]),
    (f"{RAY} --headless -dpa h", ["--headless", RAY, "without it"]),
    (f"{RAY} -dp 4 -dpl 2 -dph", ["--data-parallel-hybrid-lb", RAY, "leave one"]),
    (f"{RAY} -dp 4 -dpe", ["--data-parallel-external-lb", RAY, "leave one"]),
    (f"{RAY} -dp 4 -dpn 1", ["--data-parallel-rank 1", RAY, "leave one"]),
    (f"{RAY} -dp 4 -dpr 2", ["--data-parallel-start-rank 2", RAY, "leave one"]),
    (f"{RAY} --engine-host 192.0.2.1", ["--engine-host 192.0.2.1", RAY, "leave --engine-host out"]),
    (f"{RAY} --engine-advertise-host h", ["--engine-advertise-host h", RAY, "leave --engine-advertise-host out"]),
    (f"{RAY} --ray-address ray://h:10001", ["--ray-address ray://h:10001", "HOST:PORT", "Ray Client"]),
    (f"{RAY} -dp 4 -dpl 2", ["--data-parallel-size-local 2", "without --ray-placement strict", "add"]),
    (f"{RAY} -dp 4 -dpl 2 --ray-placement span", ["--data-parallel-size-local 2", "--ray-placement span", "strict"]),
    (f"{RAY} -dp 4 -dpl 3 --ray-placement strict", ["--data-parallel-size-local 3", "divisor of 4"]),
    (
        f"{RAY} -dp 2 --max-data-parallel-size 4 --ray-placement strict",
        ["--max-data-parallel-size 4", "--ray-placement strict", "fill or span"],
    ),
    (f"{RAY} -dp 2 -ep --tls-cert c --tls-key k", ["--enable-expert-parallel", "--tls-cert c", "cannot encrypt"]),
]
TAKEN = [
    f"{RAY} -dp 4",
    f"{RAY} -dp 4 --ray-placement span --ray-address h:6379",
    f"{RAY} -dp 4 -dpl 2 --ray-placement strict",
    f"{RAY} -dp 2 --max-data-parallel-size 4",
    f"{RAY} -dp 2 -ep",
]


@pytest.mark.parametrize(("flags", "named"), REFUSED)
def test_is_refused(flags: str, named: list[str]) -> None:
    with pytest.raises(FlagCombinationError) as refused:
        check(serve_options(flags))
    assert [name for name in named if name not in str(refused.value)] == []


@pytest.mark.parametrize("flags", TAKEN)
def test_is_taken(flags: str) -> None:
    check(serve_options(flags))

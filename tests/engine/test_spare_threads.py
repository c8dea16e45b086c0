"""When spare compute threads rest."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.support.native_kernels import native_library

STEP_S = 0.01


def decisions(steps: list[tuple[float, float]]) -> list[bool]:
    """(waited share of a step, seconds until the next) per step; whether the one after it uses spare threads."""
    library = native_library()
    now_s = np.cumsum([pause + STEP_S for _, pause in steps])
    step_s = np.full(len(steps), STEP_S)
    waited_s = np.array([share * STEP_S for share, _ in steps])
    out = np.zeros(len(steps), dtype=np.uint8)
    doubles = ctypes.POINTER(ctypes.c_double)
    library.muster_spare_decisions(
        step_s.ctypes.data_as(doubles), waited_s.ctypes.data_as(doubles), now_s.ctypes.data_as(doubles),
        len(steps), out.ctypes.data,
    )  # fmt: skip
    return [bool(each) for each in out]


def test_an_idle_core_is_used_all_the_time() -> None:
    assert all(decisions([(0.02, 0.0)] * 500))


def test_one_long_wait_is_forgiven() -> None:
    assert all(decisions([(0.0, 0.0)] * 20 + [(0.4, 0.0)] + [(0.0, 0.0)] * 20))


def test_a_busy_core_is_left_after_a_few_steps_and_tried_again_more_and_more_rarely() -> None:
    found = decisions([(0.5, 0.0)] * 2000)  # 20 s
    assert found[0]
    assert not all(found[:10])
    tries = [index for index in range(1, len(found)) if found[index] and not found[index - 1]]
    gaps = np.diff(tries) * STEP_S
    assert gaps[0] < 0.6
    assert max(gaps) < 4.0
    assert gaps[-1] > 3.0
    assert sum(found) < 100  # of 2,000


def test_a_core_that_falls_idle_is_used_again_and_trusted_again() -> None:
    found = decisions([(0.5, 0.0)] * 1000 + [(0.0, 0.0)] * 1000 + [(0.5, 0.0)] * 100)
    assert all(found[1400:2000])
    begins_to_rest = found.index(False, 2000)
    assert True in found[begins_to_rest : begins_to_rest + 30]  # the first rest is short again

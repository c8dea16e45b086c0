from __future__ import annotations

from services.launcher.pulse import MIN_QUESTIONS, Pulse

PATIENCE_S = 10.0


def asked(pulse: Pulse, times: int = MIN_QUESTIONS) -> Pulse:
    for _ in range(times):
        pulse.asked()
    return pulse


def answering() -> Pulse:
    """Started at 0, and heard at 100."""
    pulse = Pulse(PATIENCE_S, 0.0)
    pulse.answered(100.0)
    return pulse


def test_silence_for_the_whole_patience_is_a_hang() -> None:
    pulse = asked(answering())
    assert not pulse.is_hung(109.9)
    assert pulse.is_hung(110.0)
    assert pulse.complaint(110.0) == "no answer to 3 health checks for 10.0 s"


def test_few_questions_prove_nothing() -> None:
    """As when the launcher itself was stopped for an hour."""
    pulse = asked(answering(), MIN_QUESTIONS - 1)
    assert not pulse.is_hung(3700.0)
    pulse.asked()
    assert pulse.is_hung(3702.0)


def test_a_late_answer_starts_the_count_anew() -> None:
    pulse = asked(answering(), 7)
    pulse.answered(109.0)
    assert not asked(pulse).is_hung(118.0)
    assert pulse.silent_s(118.0) == 9.0
    assert pulse.is_hung(119.0)


def test_a_starting_process_has_longer() -> None:
    pulse = asked(Pulse(PATIENCE_S, 0.0), 20)
    assert not pulse.is_hung(59.0)
    assert pulse.is_hung(60.0)
    assert pulse.complaint(60.0) == "no answer to 20 health checks for 60.0 s since its start"

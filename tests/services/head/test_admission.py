"""Each check names the field, both values and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from services.head.admission import Fault, Rejection, check_introduction, check_offer, warnings_about
from tests.services.head.factories import CONFIGURATION, RULES, introduction, model, offer, rules


def test_an_engine_that_agrees_gets_the_newest_common_protocol() -> None:
    assert check_introduction(introduction(protocol_max=5), RULES) == 2
    assert check_introduction(introduction(protocol_max=1), RULES) == 1


def test_an_empty_deployment_id_and_absent_sizes_accept_the_heads() -> None:
    assert check_introduction(introduction(deployment_id="", data_parallel_size=None, rank=None), RULES) == 1


@pytest.mark.parametrize(
    ("changes", "reason", "field", "words"),
    [
        (
            {"protocol_min": 3, "protocol_max": 4},
            "PROTOCOL_MISMATCH",
            "protocol",
            ("revisions 1 to 2", "revisions 3 to 4", "install versions"),
        ),
        (
            {"protocol_min": 2, "protocol_max": 1},
            "PROTOCOL_MISMATCH",
            "protocol",
            ("revisions 2 to 1",),
        ),
        (
            {"deployment_id": "green"},
            "DEPLOYMENT_MISMATCH",
            "deployment_id",
            ("'blue'", "'green'", "--deployment-id"),
        ),
        (
            {"data_parallel_size": 4},
            "CONFIGURATION_MISMATCH",
            "data_parallel_size",
            ("head has 3", "engine has 4", "--data-parallel-size"),
        ),
        (
            {"configuration": {**CONFIGURATION, "max_model_len": "512"}},
            "CONFIGURATION_MISMATCH",
            "configuration[max_model_len]",
            ("'2048'", "'512'", "--max-model-len"),
        ),
        (
            {"configuration": {"model": "smol", "dtype": "bfloat16"}},
            "CONFIGURATION_MISMATCH",
            "configuration[max_model_len]",
            ("'2048'", "nothing"),
        ),
        (
            {"rank": 3},
            "RANK_OUT_OF_RANGE",
            "rank",
            ("ranks 0 to 2", "rank 3", "--data-parallel-start-rank"),
        ),
    ],
)
def test_a_difference_is_rejected(changes: dict[str, object], reason: str, field: str, words: tuple[str, ...]) -> None:
    with pytest.raises(Rejection) as caught:
        check_introduction(introduction(**changes), RULES)
    assert caught.value.reason == reason
    assert [mismatch.field for mismatch in caught.value.mismatches] == [field]
    for word in words:
        assert word in caught.value.mismatches[0].describe()
        assert word in str(caught.value)


def test_all_differences_are_told_at_once() -> None:
    with pytest.raises(Rejection) as caught:
        check_introduction(introduction(deployment_id="x", data_parallel_size=9, rank=8, configuration={}), RULES)
    assert [mismatch.field for mismatch in caught.value.mismatches] == [
        "deployment_id",
        "data_parallel_size",
        *(f"configuration[{key}]" for key in sorted(CONFIGURATION)),
        "rank",
    ]


def test_the_only_rank_of_a_small_deployment_is_named() -> None:
    with pytest.raises(Rejection, match="only rank 0"):
        check_introduction(introduction(rank=1, data_parallel_size=1), rules(data_parallel_size=1))


def test_another_version_and_unknown_settings_are_only_warnings() -> None:
    engine = introduction(product_version="0.9", configuration={**CONFIGURATION, "extra": "1"})
    check_introduction(engine, RULES)
    version, settings = warnings_about(engine, RULES)
    assert "0.9" in version
    assert "1.0" in version
    assert "extra" in settings
    assert warnings_about(introduction(), RULES) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"fingerprint": "beef"}, "model.fingerprint"),
        ({"max_model_len": 1024}, "model.max_model_len"),
        ({"block_size": 32}, "model.block_size"),
        ({"served_model_names": ["smol", "other"]}, "model.served_model_names"),
    ],
)
def test_a_rank_must_serve_what_the_others_serve(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejection) as caught:
        check_offer(offer(**changes), offer())
    assert caught.value.fault is Fault.MISMATCH
    assert caught.value.reason == "MODEL_MISMATCH"
    assert [mismatch.field for mismatch in caught.value.mismatches] == [field]


def test_ranks_may_differ_in_the_size_of_their_cache() -> None:
    check_offer(offer(num_blocks=10), offer(num_blocks=99))


@pytest.mark.parametrize("targets", [(), ("",), ("unix:/a", " "), tuple(f"h:{n}" for n in range(17))])
def test_a_ready_needs_usable_targets(targets: tuple[str, ...]) -> None:
    with pytest.raises(Rejection) as caught:
        check_offer(offer(targets), None)
    assert caught.value.reason == "INVALID_READY"
    assert caught.value.mismatches[0].field == "targets"


@pytest.mark.parametrize("target", ["0.0.0.0:41231", "dns:///0.0.0.0:41231", "[::]:41231", "dns:///[::]:1"])
def test_a_target_that_nobody_else_can_dial_is_rejected(target: str) -> None:
    with pytest.raises(Rejection, match="--advertise-host") as caught:
        check_offer(offer(("unix:/run/e0.sock", target)), None)
    assert target in caught.value.mismatches[0].engine_value
    check_offer(offer(("[::1]:41231", "10.0.0.0:41231", "dns:///node2:41231")), None)


def test_a_ready_needs_a_fingerprint() -> None:
    with pytest.raises(Rejection, match=r"model\.fingerprint"):
        check_offer(offer(fingerprint=""), None)
    assert model().fingerprint


@pytest.mark.parametrize("name", ["host", "host_id", "product_version"])
@pytest.mark.parametrize("value", ["evil\n12:00:00.000 ERROR   forged", "\x1b[31m", "x" * 256])
def test_names_that_would_forge_log_lines_or_steer_terminals_are_refused(name: str, value: str) -> None:
    with pytest.raises(Rejection) as caught:
        check_introduction(introduction(**{name: value}), RULES)
    assert (caught.value.fault, caught.value.reason) == (Fault.INVALID, "INVALID_HELLO")
    assert [wrong.field for wrong in caught.value.mismatches] == [name]
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_settings_that_should_be_equal_are_warned_of() -> None:
    advised = rules(advice={"max-num-seqs": "64", "enable-prefix-caching": "on"})
    hello = introduction(configuration={**advised.configuration, "max-num-seqs": "8", "enable-prefix-caching": "on"})
    (warning,) = warnings_about(hello, advised)
    assert "max-num-seqs '8', the head '64'" in warning
    assert "--max-num-seqs on every node" in warning
    assert check_introduction(hello, advised) == 1

from __future__ import annotations

import dataclasses

import pytest

from services.cli import flag_table
from services.cli import flag_values as values
from services.cli.flag import Flag, FlagValueError, read_flags
from services.cli.parser import build_parser
from services.launcher.options import ServeOptions


def read(command: str, flags: tuple[Flag, ...], arguments: str = "", **environment: str) -> dict[str, object]:
    return read_flags(flags, build_parser().parse_args([command, *arguments.split()]), environment)


def test_serve_has_a_flag_for_every_option() -> None:
    fields = {field.name for field in dataclasses.fields(ServeOptions)}
    assert {flag.field for flag in flag_table.SERVE} | {"model"} == fields


@pytest.mark.parametrize("flags", [flag_table.SERVE, flag_table.HEAD, flag_table.ENGINE, flag_table.GATEWAY])
def test_names_and_variables_are_unique_per_command(flags: tuple[Flag, ...]) -> None:
    for names in ([flag.name for flag in flags], [flag.variable for flag in flags]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("flag", flag_table.ALL, ids=lambda flag: flag.name)
def test_help_tells_default_and_variable(flag: Flag) -> None:
    assert flag.variable in flag.described()
    assert "[default: " in flag.described()


def test_the_command_line_wins_over_the_environment_over_the_default() -> None:
    assert read("serve", flag_table.SERVE)["port"] == 8000
    assert read("serve", flag_table.SERVE, MUSTER_PORT="9000")["port"] == 9000
    assert read("serve", flag_table.SERVE, "--port 9001", MUSTER_PORT="9000")["port"] == 9001
    assert read("serve", flag_table.SERVE, MUSTER_PORT="")["port"] == 8000


def test_switches_and_lists_in_the_environment() -> None:
    found = read("serve", flag_table.SERVE, MUSTER_HEADLESS="yes", MUSTER_API_KEY="a, b", MUSTER_CACHE="/c")
    assert found["headless"] is True
    assert found["api_key"] == ("a", "b")
    assert str(found["model_cache"]) == "/c"
    assert read("serve", flag_table.SERVE, "--no-enable-prefix-caching")["enable_prefix_caching"] is False
    assert read("serve", flag_table.SERVE, MUSTER_ENABLE_PREFIX_CACHING="0")["enable_prefix_caching"] is False


def test_lists_can_be_repeated_or_spaced() -> None:
    assert read("serve", flag_table.SERVE, "--api-key a --api-key b c")["api_key"] == ("a", "b", "c")


def test_vllms_short_names() -> None:
    found = read("serve", flag_table.SERVE, "-dp 4 -dpl 2 -dpr 2 -dpa h -dpp 5 -asc 3")
    assert found["data_parallel_size"] == 4
    assert found["data_parallel_size_local"] == 2
    assert found["data_parallel_start_rank"] == 2
    assert found["data_parallel_address"] == "h"
    assert found["data_parallel_rpc_port"] == 5
    assert found["api_server_count"] == 3


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ("--port 70000", {}, ["--port", "'70000'", "65535"]),
        ("--port eight", {}, ["--port", "'eight'"]),
        ("", {"MUSTER_PORT": "x"}, ["MUSTER_PORT", "--port", "'x'"]),
        ("--dtype int3", {}, ["--dtype", "'int3'", "bfloat16"]),
        ("--kv-cache-memory " + "9" * 400, {}, ["--kv-cache-memory", "512MiB"]),
        ("--data-parallel-start-rank 99999999999", {}, ["--data-parallel-start-rank", "0 to 4095"]),
        ("--data-parallel-size 0", {}, ["--data-parallel-size", "'0'", "1 to 4096"]),
        ("--shutdown-timeout soon", {}, ["--shutdown-timeout", "'soon'", "30"]),
        ("--kv-cache-memory lots", {}, ["--kv-cache-memory", "'lots'", "GiB"]),
        ("", {"MUSTER_HEADLESS": "maybe"}, ["MUSTER_HEADLESS", "'maybe'", "1 or 0"]),
    ],
)
def test_bad_values_name_flag_value_and_fix(arguments: str, environment: dict[str, str], said: list[str]) -> None:
    with pytest.raises(FlagValueError) as caught:
        read("serve", flag_table.SERVE, arguments, **environment)
    assert [word for word in said if word not in str(caught.value)] == []


def test_secrets_are_not_repeated() -> None:
    flag = Flag("--token", "Server", "A token.", values.whole_number(0), secret=True)
    with pytest.raises(FlagValueError) as caught:
        flag.value_of("hunter2", "--token")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30.0), ("30s", 30.0), ("500ms", 0.5), ("1.5m", 90.0), ("1h", 3600.0), ("0", 0.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert values.seconds(text) == seconds


@pytest.mark.parametrize("text", ["-1", "", "1d", "s", "1 2"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        values.seconds(text)


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("1KiB", 1024), ("2G", 2 << 30), ("2GB", 2 * 10**9), ("1.5 MiB", 3 << 19)]
)
def test_sizes(text: str, size: int) -> None:
    assert values.num_bytes(text) == size


def test_ranges_of_ranks() -> None:
    assert values.ranks("0-3") == range(4)
    assert values.ranks("2") == range(2, 3)
    for text in ("3-1", "a", "1-", "-1"):
        with pytest.raises(ValueError, match="range"):
            values.ranks(text)


def test_settings() -> None:
    assert values.setting("model=a=b.gguf") == ("model", "a=b.gguf")
    assert values.setting("served-model-name=") == ("served-model-name", "")
    with pytest.raises(ValueError, match="KEY=VALUE"):
        values.setting("model")


@pytest.mark.parametrize("text", ["0-9999999999", "0-4096", "4096", "1,2-" + "9" * 5000, "9" * 5000])
def test_ranks_that_cannot_be_are_refused_before_they_are_counted(text: str) -> None:
    with pytest.raises(ValueError, match="beyond the last rank that can be; give ranks from 0 to 4095"):
        values.rank_list(text)


def test_lists_of_ranks() -> None:
    assert values.rank_list("7,0-2, 004-0005,1") == (0, 1, 2, 4, 5, 7)
    assert values.ranks("0-4095") == range(4096)
    for text in ("", "a", "3-1", "1,,2", "-1", "1-"):
        with pytest.raises(ValueError, match="give for example 0,2,4-7"):
            values.rank_list(text)

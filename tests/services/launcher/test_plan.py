from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from services.cli import flag_table
from services.cli.flag import Flag, read_flags
from services.cli.parser import build_parser
from services.launcher import plan
from services.launcher.plan import ChildSpec, Places, ThreadShare
from tests.services.launcher.serve_options import serve_options

PLACES = Places(
    runtime_dir=Path("/run/m"),
    model_path=Path("/models/tiny"),
    served_model_names=("tiny", "alias"),
    threads=ThreadShare(3, 1),
    engine_host="127.0.0.1",
    http_fds=(7, 8),
    grpc_port=8001,
)


def parsed(spec: ChildSpec, flags: tuple[Flag, ...]) -> dict[str, object]:
    """What the child will read from its command line."""
    namespace = build_parser().parse_args(spec.arguments)
    return {"model": getattr(namespace, "model", None), **read_flags(flags, namespace, dict(spec.environment))}


def test_engines_get_their_ranks_and_the_models_settings() -> None:
    options = serve_options("-dp 4 -dpl 2 --max-model-len 512 --seed 5 --kv-cache-memory 64MiB --shutdown-timeout 1.5")
    engines = plan.plan_engines(options, PLACES)
    assert [engine.name for engine in engines] == ["engine 0", "engine 1"]
    values = parsed(engines[1], flag_table.ENGINE)
    assert values["rank"] == 1
    assert values["model"] == "/models/tiny"
    assert values["data_parallel_size"] == 4
    assert values["head_target"] == "unix:/run/m/head.sock"
    assert values["unix_path"] == Path("/run/m/e1.sock")
    assert values["served_model_name"] == ("tiny", "alias")
    assert (values["max_model_len"], values["seed"], values["kv_cache_memory"]) == (512, 5, 64 << 20)
    assert values["shutdown_timeout"] == 1.5
    assert values["num_threads"] == 3
    assert values["local"] is True
    assert values["headless"] is False
    assert dict(engines[0].environment)["OMP_NUM_THREADS"] == "3"


def test_an_engine_that_is_added_takes_the_size_as_it_is_then() -> None:
    options = serve_options("-dp 2 --max-data-parallel-size 4")
    assert options.max_local_ranks == 4
    values = parsed(plan.plan_engine(options, PLACES, slot=2, rank=3), flag_table.ENGINE)
    assert (values["rank"], values["data_parallel_size"], values["unix_path"]) == (3, None, Path("/run/m/e2.sock"))
    assert parsed(plan.plan_head(options, PLACES, port=1), flag_table.HEAD)["max_data_parallel_size"] == 4
    assert plan.threads_per_rank(options, 9) == ThreadShare(2, 2), "threads that rest when the others come"


DOORS = (
    "--tls-cert c --tls-key k --tls-ca a --no-tls-client-auth --tls-server-name n --cluster-token-file t "
    "--no-grpc-reflection"
)


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (lambda options: plan.plan_head(options, PLACES, port=1), flag_table.HEAD),
        (lambda options: plan.plan_engines(options, PLACES)[0], flag_table.ENGINE),
        (lambda options: plan.plan_gateways(options, PLACES)[0], flag_table.GATEWAY),
    ],
)
def test_every_process_gets_the_same_doors(make: Any, flags: tuple[Flag, ...]) -> None:
    options = serve_options(DOORS)
    values = parsed(make(options), flags)
    for flag in flag_table.DOORS:
        assert values[flag.field] == getattr(options, flag.field) != flag.default, flag.name


def test_every_setting_of_an_engine_is_handed_down() -> None:
    """All flags that `serve` and `engine` share, each with a value that is not its default."""
    line = (
        "--served-model-name other --dtype bfloat16 --device cuda --kernels torch -q int4 --load-format dummy --seed 9 "
        "--attention-backend torch --enforce-eager --max-cudagraph-capture-size 8 --gpu-memory-utilization 0.55 "
        "--max-model-len 300 --model-cache /c --max-num-seqs 3 --max-num-batched-tokens 77 --block-size 8 "
        "--num-blocks 99 --kv-cache-memory 5MiB --no-enable-prefix-caching --max-num-queued-reqs 6 --num-threads 2 "
        "--num-spare-threads 5 --enable-expert-parallel "
        "--shutdown-timeout 4 --head-timeout 70 --log-level debug --log-format json --headless -dpa h "
        f"{DOORS}"
    )
    options = serve_options(line)
    values = parsed(plan.plan_engines(options, PLACES)[0], flag_table.ENGINE)
    # What the launcher itself works out, from these flags, is in its places.
    worked_out = {
        flag_table.SERVED_MODEL_NAME: PLACES.served_model_names,
        flag_table.NUM_THREADS: 3,
        flag_table.NUM_SPARE_THREADS: 1,
    }
    for flag in set(flag_table.SERVE) & set(flag_table.ENGINE):
        given = getattr(options, flag.field)
        assert given != flag.default, f"give {flag.name} another value than its default in this test"
        assert values[flag.field] == worked_out.get(flag, given), flag.name


def test_headless_engines_dial_the_head_over_tcp() -> None:
    options = serve_options("-dp 4 -dpl 2 -dpr 2 --headless --data-parallel-address fd00::1 --engine-advertise-host n2")
    engines = plan.plan_engines(options, PLACES)
    values = parsed(engines[0], flag_table.ENGINE)
    assert values["head_target"] == "[fd00::1]:29550"
    assert (values["rank"], values["local"], values["headless"]) == (2, False, True)
    assert values["advertise_host"] == "n2"
    assert plan.plan_gateways(options, PLACES) == []


def test_headless_engines_without_a_start_rank_ask_for_any() -> None:
    engines = plan.plan_engines(serve_options("-dp 4 -dpl 2 --headless -dpa h"), PLACES)
    assert [engine.name for engine in engines] == ["engine a", "engine b"]
    assert parsed(engines[0], flag_table.ENGINE)["rank"] is None


def test_the_head_compares_what_every_engine_must_have() -> None:
    options = serve_options(
        "-dp 2 --dtype float32 --quantization int8 --ready-timeout 90 --deployment-id blue -ep "
        "--shrink-expert-group-after 45"
    )
    values = parsed(plan.plan_head(options, PLACES, port=41000), flag_table.HEAD)
    assert values["port"] == 41000
    assert values["host"] == "127.0.0.1"
    assert values["deployment_id"] == "blue"
    assert values["ready_timeout"] == 90.0
    assert values["shrink_expert_group_after"] == 45.0
    assert values["local_ranks"] == range(2)
    configuration = values["configuration"]
    assert isinstance(configuration, tuple)
    assert dict(configuration) == {
        "model": "tiny",
        "dtype": "float32",
        "quantization": "int8",
        "max-model-len": "auto",
        "block-size": "16",
        "seed": "0",
        "served-model-name": "tiny,alias",
        "enable-expert-parallel": "on",
    }


def test_the_head_binds_its_own_address_when_one_is_given() -> None:
    options = serve_options("--data-parallel-address 10.0.0.1 --data-parallel-bind-address 0.0.0.0")
    assert parsed(plan.plan_head(options, PLACES, port=1), flag_table.HEAD)["host"] == "0.0.0.0"


def test_engines_of_the_heads_node_are_told_apart_by_who_may_reach_them() -> None:
    def advertised(flags: str) -> object:
        engine = plan.plan_engines(serve_options(flags), PLACES)[0]
        return parsed(engine, flag_table.ENGINE)["advertise_host"]

    assert advertised("-dp 2") is None
    assert advertised("-dp 2 -dpl 1 -dpa 10.0.0.1") == "10.0.0.1"
    assert advertised("-dp 2 -dpl 1 -dpa 10.0.0.1 --data-parallel-bind-address 0.0.0.0") == "10.0.0.1"
    assert advertised("-dp 2 -dpl 1 -dpa 10.0.0.1 --engine-host 10.0.0.7") is None
    assert advertised("-dp 2 -dpl 1 -dpa 10.0.0.1 --engine-advertise-host n1") == "n1"


def test_gateways_inherit_sockets_and_keep_keys_off_the_command_line() -> None:
    options = serve_options("--api-server-count 2 --api-key secret-a secret-b --request-timeout 5m")
    gateways = plan.plan_gateways(options, PLACES)
    assert [gateway.name for gateway in gateways] == ["gateway 0", "gateway 1"]
    assert gateways[0].inherited_fds == (7, 8)
    assert "secret" not in " ".join(gateways[0].command)
    values = parsed(gateways[1], flag_table.GATEWAY)
    assert values["http_fd"] == (7, 8)
    assert values["grpc_port"] == 8001
    assert values["reuse_port"] is True
    assert values["api_key"] == ("secret-a", "secret-b")
    assert values["request_timeout"] == 300.0


def test_children_do_not_read_the_launchers_variables() -> None:
    spec = ChildSpec("gateway", (), environment=(("MUSTER_API_KEY", "k"), ("OMP_NUM_THREADS", "3")))
    parent = {"MUSTER_PORT": "9", "MUSTER_API_KEY": "old", "PATH": "/bin", "OMP_NUM_THREADS": "7"}
    environment = plan.child_environment(spec, parent, own_variables=["MUSTER_PORT", "MUSTER_API_KEY"])
    assert "MUSTER_PORT" not in environment
    assert environment["MUSTER_API_KEY"] == "k"
    assert environment["OMP_NUM_THREADS"] == "7"  # the user's word stands
    assert environment["MUSTER_PARENT_PID"] == str(os.getpid())
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_threads_leave_a_core_and_never_reach_zero() -> None:
    def share(flags: str, num_cores: int) -> tuple[int, int]:
        found = plan.threads_per_rank(serve_options(flags), num_cores)
        return found.reserved, found.spare

    assert share("", 2) == (1, 1)
    assert share("", 1) == (1, 0)
    assert share("-dp 2", 2) == (1, 0)
    assert share("-dp 2", 9) == (4, 0)
    assert share("-dp 2", 8) == (3, 1)
    assert share("--num-threads 2", 8) == (2, 0)
    assert share("--num-threads 2 --num-spare-threads 1", 8) == (2, 1)
    assert share("--num-spare-threads 0", 8) == (7, 0)


def test_hosts_and_ports_are_joined_as_urls_want_them() -> None:
    assert plan.join_host_port("::1", 80) == "[::1]:80"
    assert plan.join_host_port("[::1]", 80) == "[::1]:80"
    assert plan.join_host_port("localhost", 80) == "localhost:80"


def test_gateways_of_a_hybrid_node_serve_its_ranks_and_dial_the_head_over_tcp() -> None:
    options = serve_options("-dp 4 -dpl 2 -dpr 2 --data-parallel-hybrid-lb -dpa h")
    (gateway,) = plan.plan_gateways(options, PLACES)
    values = parsed(gateway, flag_table.GATEWAY)
    assert (values["ranks"], values["head_target"]) == ((2, 3), "h:29550")
    values = parsed(plan.plan_engines(options, PLACES)[0], flag_table.ENGINE)
    assert (values["rank"], values["local"], values["headless"]) == (2, False, False)
    (everything,) = plan.plan_gateways(serve_options("-dp 4"), PLACES)
    assert parsed(everything, flag_table.GATEWAY)["ranks"] is None

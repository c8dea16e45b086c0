"""Flags of the HTTP front: handed on whole, and refused with a reason when they cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.cli import flag_table
from services.cli.flag import FlagValueError, read_flags
from services.cli.parser import build_parser
from services.cli.serve_command import serve_options as checked_options
from services.http_front import HttpFront, HttpFrontError
from services.launcher import plan
from tests.services.launcher.serve_options import serve_options
from tests.services.launcher.test_plan import PLACES, parsed
from tests.support.self_signed import self_signed


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return self_signed(tmp_path)


def test_every_flag_reaches_the_gateway(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    line = (
        f"--api-key-file {keys} --queue-timeout 5 --uds /s "
        f"--ssl-certfile {certificate[0]} --ssl-keyfile {certificate[1]} "
        "--allowed-methods GET POST --allowed-headers x-a --allow-credentials --reasoning-parser qwen3 "
        "--tool-call-parser hermes --otlp-traces-endpoint http://c:4317"
    )
    options = serve_options(line)
    values = parsed(plan.plan_gateways(options, PLACES)[0], flag_table.GATEWAY)
    for flag in flag_table.FRONT:
        given = getattr(options, flag.field)
        assert given != flag.default, f"give {flag.name} another value than its default in this test"
        # The launcher opens the socket; gateways inherit it.
        assert values[flag.field] == (None if flag is flag_table.UDS else given), flag.name


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n  second \n#third\n")
    assert HttpFront(api_key_file=file).keys() == ("first", "second")
    file.write_text("# nobody\n")
    with pytest.raises(HttpFrontError, match="has no key"):
        HttpFront(api_key_file=file).check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"api_key_file": Path("nowhere")}, "--api-key-file nowhere: no such file"),
        ({"ssl_keyfile": Path("k")}, "--ssl-keyfile k without --ssl-certfile"),
        ({"ssl_certfile": Path("nowhere")}, "--ssl-certfile nowhere: no such file"),
        ({"ssl_certfile": Path("/dev/null")}, "--ssl-certfile /dev/null: "),
    ],
)
def test_what_cannot_work_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(HttpFrontError) as refused:
        HttpFront(**fields).check()
    assert message in str(refused.value)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    (tmp_path / "other").mkdir()
    _, other_key = self_signed(tmp_path / "other")
    HttpFront(ssl_certfile=certificate[0], ssl_keyfile=certificate[1]).check()
    with pytest.raises(HttpFrontError, match="--ssl-keyfile"):
        HttpFront(ssl_certfile=certificate[0], ssl_keyfile=other_key).check()
    with pytest.raises(HttpFrontError, match="private key"):
        HttpFront(ssl_certfile=certificate[0]).check()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, days=-1)
    with pytest.raises(HttpFrontError, match=f"--ssl-certfile {cert} has expired"):
        HttpFront(ssl_certfile=cert, ssl_keyfile=key).check()


def test_serve_refuses_before_it_starts_anything() -> None:
    with pytest.raises(FlagValueError, match="--ssl-keyfile k without --ssl-certfile"):
        checked_options(build_parser().parse_args(["serve", "--ssl-keyfile", "k"]), {})


def test_parsers_are_those_of_the_gateway() -> None:
    from gateway import reasoning, tool_use

    for flag, known in (
        (flag_table.REASONING_PARSER, reasoning.PARSERS),
        (flag_table.TOOL_CALL_PARSER, tool_use.PARSERS),
    ):
        for name in known:
            namespace = build_parser().parse_args(["gateway", flag.name, name])
            assert read_flags(flag_table.GATEWAY, namespace, {})[flag.field] == name
            assert name in flag.help

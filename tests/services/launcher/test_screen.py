from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from services.launcher.banner import Banner
from services.launcher.screen import Reason, Screen
from services.rpc.security import Security


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_of_a_log_name_their_process() -> None:
    out = io.StringIO()
    screen = Screen(out=out)
    screen.child_line("engine 0", "12:00:00.000 INFO    hello")
    screen.say("careful", level="WARNING")
    screen.show_moving(["a bar"])  # not a terminal: nothing
    assert out.getvalue() == "[engine 0] 12:00:00.000 INFO    hello\n[muster] WARNING careful\n"


def test_own_lines_obey_the_log_level() -> None:
    out = Terminal()
    screen = Screen(out=out, level="warning")
    screen.say("up")
    screen.show_moving(["a bar"])
    assert out.getvalue() == ""
    screen.say("careful", level="WARNING")
    screen.child_line("engine 0", "Traceback (most recent call last):")
    assert "careful" in out.getvalue()
    assert "Traceback" in out.getvalue()


def test_json_lines_of_children_pass_unchanged() -> None:
    out = io.StringIO()
    screen = Screen(log_format="json", out=out)
    screen.child_line("engine 0", '{"message": "hello"}')
    screen.say("up")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first == {"message": "hello"}
    assert (second["process"], second["level"], second["message"]) == ("launcher", "INFO", "up")


def test_moving_lines_stay_below_and_are_erased() -> None:
    out = Terminal()
    screen = Screen(out=out)
    screen.show_moving(["bar 1", "bar 2"])
    out.seek(0)
    out.truncate()
    screen.say("news")
    text = out.getvalue()
    assert text.count("\x1b[1A") == 2  # both bars erased …
    assert text.index("news") < text.index("bar 1") < text.index("bar 2")  # … and drawn again below
    screen.show_moving([])
    assert out.getvalue().count("\x1b[1A") == 4


def test_a_broken_pipe_does_not_stop_serving() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    Screen(out=Gone()).say("nobody listens")


def test_the_reason_is_the_last_error_else_the_last_line() -> None:
    reason = Reason()
    assert str(reason) == "it said nothing"
    reason.note("12:00:00.000 INFO    starting")
    assert str(reason) == "starting"
    reason.note("12:00:00.000 ERROR   no memory")
    reason.note("12:00:00.001 INFO    bye")
    assert str(reason) == "no memory"
    reason.note('{"level": "ERROR", "message": "as json"}')
    assert str(reason) == "as json"
    reason.note("")
    assert str(reason) == "as json"


def banner(**changes: object) -> Banner:
    facts: dict[str, object] = {
        "version": "1.0",
        "model_name": "tiny",
        "num_ranks": 2,
        "host": "127.0.0.1",
        "port": 8000,
        "grpc_port": 8001,
        "needs_key": False,
    }
    return Banner(**{**facts, **changes})  # type: ignore[arg-type]


def test_the_banner_says_where_and_what_to_type() -> None:
    text = "\n".join(banner().lines(colour=False))
    assert "serves tiny on 2 ranks at http://127.0.0.1:8000" in text
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in text
    assert "127.0.0.1:8001 muster.v1.InferenceService/Chat" in text
    assert "muster chat\n" in text
    assert "\x1b" not in text


def test_the_banner_shows_addresses_that_can_be_dialled() -> None:
    assert banner(host="0.0.0.0").url == "http://127.0.0.1:8000"
    assert banner(host="::").grpc_target == "[::1]:8001"
    assert "--url http://127.0.0.1:81" in "\n".join(banner(port=81).lines(colour=False))


def test_the_banner_reminds_of_keys_and_shows_none() -> None:
    text = "\n".join(banner(needs_key=True).lines(colour=False))
    assert text.count("Bearer KEY") == 2
    assert "--api-key KEY" in text


def test_the_banner_shows_how_to_get_through_the_doors() -> None:
    def flags(security: Security) -> str:
        return "\n".join(banner(security=security).lines(colour=False)).partition("grpcurl ")[2].partition(" -d ")[0]

    mutual = Security(tls_cert=Path("c"), tls_key=Path("k"), tls_ca=Path("ca.crt"), cluster_token_file=Path("t"))
    assert flags(Security()) == "-plaintext"
    assert flags(mutual) == "-cacert ca.crt -cert CERT -key KEY -H 'authorization: Bearer TOKEN'"
    assert flags(replace(mutual, tls_client_auth=False, cluster_token_file=None)) == "-cacert ca.crt"
    assert flags(replace(mutual, tls_server_name="muster")).startswith(
        "-cacert ca.crt -cert CERT -key KEY -authority muster"
    )

from __future__ import annotations

import pytest

from services.cli.main import main


@pytest.mark.parametrize("command", ["serve", "head", "engine", "gateway", "chat", "status", "fetch", "version"])
def test_help_lists_flags_in_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: muster {command}" in shown
    if command in {"serve", "engine"}:
        assert "Scheduling and memory:" in shown
        assert "MUSTER_MAX_NUM_SEQS" in shown
        assert "MODEL" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--prot", "8"], "did you mean --port?"),
        (["serve", "a", "b"], "unexpected argument 'b'"),
        (["serve", "-dp", "2", "-dpl", "3"], "--data-parallel-size-local 3"),
        (["serve", "--port", "x"], "--port: 'x'"),
        (["engine", "--rank", "2", "-dp", "2"], "--rank 2 does not exist with --data-parallel-size 2"),
    ],
)
def test_wrong_usage_is_two(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert f"See `muster {arguments[0]} --help`." in shown


def test_without_a_command_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().out


def test_an_unknown_command_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sevre"])
    assert ended.value.code == 2
    assert "sevre" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("muster 0.")


def test_a_model_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/no/such.gguf"]) == 1
    said = capsys.readouterr().err
    assert "'/no/such.gguf'" in said
    assert "config.json" in said


def test_status_without_a_head_says_where_it_looked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--head-target", "unix:/no/such.sock", "--timeout", "1"]) == 1
    assert "unix:/no/such.sock" in capsys.readouterr().err


def test_an_interrupt_before_anything_has_begun_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("services.cli.parser.build_parser", interrupted)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == "\n"

"""The pure parts: options, answers, and what the package imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from muster import v1 as wire
from muster.client import TruncatedError
from muster.client.answers import TextReader, to_answer, to_generated
from muster.client.connection import engine_target
from muster.client.options import Options, TokenOptions, to_generate_request, to_generation_options, to_messages

ROOT = Path(__file__).resolve().parents[2]


def test_options_land_where_the_contract_has_them() -> None:
    options = to_generation_options(
        {
            "temperature": 0.0,
            "max_tokens": 7,
            "stop": "end",
            "bad_words": [[1, 2]],
            "json_schema": {"type": "object"},
            "logprobs": 0,
            "seed": None,
        }
    )
    assert options.sampling.HasField("temperature")
    assert not options.sampling.HasField("seed")
    assert options.sampling.bad_words[0].token_ids == [1, 2]
    assert options.conditions.max_tokens == 7
    assert options.stop_strings == ["end"]
    assert options.constraint.json_schema == '{"type": "object"}'
    assert options.HasField("logprobs")


@pytest.mark.parametrize(
    "options", [{"choice": ["a"]}, {"regex": "a+"}, {"grammar": "start: A"}, {"json_object": True}]
)
def test_each_constraint(options: dict[str, Any]) -> None:
    (name,) = options
    assert to_generation_options(options).constraint.WhichOneof("kind") == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_token": 3}, "no option is named 'max_token'"),
        ({"regex": "a", "choice": ["a"]}, "choice and regex are given"),
    ],
)
def test_options_that_do_not_exist_are_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        to_generation_options(options)


def test_token_ids_have_no_options_of_text() -> None:
    request = to_generate_request([1, 2], {"min_tokens": 2, "priority": -1}, request_id="r", prompt_logprobs=0)
    assert (request.stop.min_tokens, request.priority, request.HasField("prompt_logprobs")) == (2, -1, True)
    with pytest.raises(TypeError, match="no option is named 'stop'"):
        to_generate_request([1], {"stop": "x"}, request_id="", prompt_logprobs=None)


def test_every_option_of_the_contract_can_be_given() -> None:
    """A field that is added to the contract is noticed here."""
    known = TokenOptions.__annotations__.keys() | Options.__annotations__.keys()
    known |= {"prompt_token_ids", "request_id", "prompt_logprobs"}  # parameters of their own
    known |= {"generated_token_ids", "stop_strings"}  # a gateway's business; the name on the wire of `stop`
    messages = (wire.SamplingParams, wire.StopConditions, wire.Constraint, wire.GenerationOptions, wire.GenerateRequest)
    names = {field.name for message in messages for field in message.DESCRIPTOR.fields}
    assert names - known == {"sampling", "conditions", "stop", "constraint"} - known


def test_messages_are_pairs_objects_or_a_text() -> None:
    given = to_messages([("system", "Be brief."), {"role": "user", "content": "Hi"}])
    assert [(turn.role, turn.content) for turn in given] == [("system", "Be brief."), ("user", "Hi")]
    assert to_messages("Hi") == [wire.ChatMessage(role="user", content="Hi")]


def test_answers_that_stopped_half_way_are_errors() -> None:
    reader = TextReader()
    deltas = [reader.take(wire.ChatResponse(request_id="r", delta=wire.TextDelta(index=0, text="a")))]
    with pytest.raises(TruncatedError):
        to_answer([delta for delta in deltas if delta is not None], reader)
    with pytest.raises(TruncatedError):
        to_generated([wire.GenerateResponse(token_ids=[1])])


def test_a_finish_reason_of_a_later_contract_has_no_name() -> None:
    later: Any = 77
    generated = to_generated([wire.GenerateResponse(token_ids=[1], finish_reason=later, usage=wire.Usage())])
    assert (generated.finish_reason, generated.token_ids) == ("", (1,))


def test_where_a_rank_is() -> None:
    here = wire.RankEntry(rank=0, targets=["unix:/x", "10.0.0.1:5"])
    roster = wire.Roster(ranks=[here, wire.RankEntry(rank=1, state=wire.RANK_STATE_LOST)])
    assert engine_target(roster, 0) == "10.0.0.1:5"
    with pytest.raises(LookupError, match="rank 1 is LOST and has no address"):
        engine_target(roster, 1)
    with pytest.raises(LookupError, match="ranks are 0 to 1"):
        engine_target(roster, 2)
    with pytest.raises(LookupError, match="rank -1 does not exist"):
        engine_target(roster, -1)


def test_the_client_needs_nothing_but_its_dependencies() -> None:
    """A finder in front refuses everything else, as if it were not installed."""
    code = """
import sys
allowed = {"grpc", "google", "muster", "typing_extensions"} | set(sys.stdlib_module_names)
class Refusing:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in allowed and not root.startswith("_"):
            raise ModuleNotFoundError(f"no {name} here", name=name)
sys.meta_path.insert(0, Refusing())
import muster.client
client = muster.client.Client("127.0.0.1:1", head="127.0.0.1:1")
client.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "protos",
        env={"PYTHONPATH": str(ROOT / "protos")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

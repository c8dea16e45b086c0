"""The tiny model behind gRPC answers exactly as the same engine in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from muster import v1 as wire

from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.request import Constraint, ConstraintKind, Request, SamplingParams, StopConditions
from services.engine.server import EngineOptions, EngineProcess
from services.rpc.channels import dial
from tests.services.engine.conftest import TIMEOUT_S
from tests.support.tiny_model import write_huggingface_directory
from tests.support.waiting import eventually

NUM_TOKENS = 24
PROMPTS = [list(range(1, 1 + length)) for length in (1, 2, 7, 33, 120)]
SAMPLINGS = [  # numbers that the 32-bit floats of the wire hold exactly
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.75, top_k=40, top_p=0.875, seed=11),
    SamplingParams(temperature=1.25, min_p=0.0625, presence_penalty=0.5, repetition_penalty=1.25, seed=-3),
]
CONSTRAINTS = [
    None,
    Constraint(ConstraintKind.REGEX, "[a-z ]+[.]"),
    Constraint(ConstraintKind.CHOICE, choices=("yes", "no", "perhaps")),
    Constraint(ConstraintKind.JSON_OBJECT),
    Constraint(ConstraintKind.GRAMMAR, 'start: "[" start* "]"'),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory = write_huggingface_directory(tmp_path_factory.mktemp("model") / "tiny")
    return EngineConfig(
        model_path=directory, dtype="float32", num_blocks=200, max_model_len=256, max_num_seqs=8, num_threads=1
    )


def expected(
    built: BuiltEngine, prompt: list[int], sampling: SamplingParams, constraint: Constraint | None
) -> list[int]:
    """What the engine answers without any gRPC, alone."""
    stop = StopConditions(max_tokens=NUM_TOKENS, ignore_eos=constraint is None)
    built.core.add(Request("alone", tuple(prompt), sampling, stop, constraint=constraint))
    tokens: list[int] = []
    while built.core.has_work:
        for output in built.core.step().outputs:
            tokens += output.token_ids
    built.core.check()
    return tokens


def to_wire(prompt: list[int], sampling: SamplingParams, constraint: Constraint | None) -> wire.GenerateRequest:
    return wire.GenerateRequest(
        prompt_token_ids=prompt,
        sampling=wire.SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
        ),
        stop=wire.StopConditions(max_tokens=NUM_TOKENS, ignore_eos=constraint is None),
        constraint=None if constraint is None else constraint_to_wire(constraint),
    )


def constraint_to_wire(constraint: Constraint) -> wire.Constraint:
    match constraint.kind:
        case ConstraintKind.CHOICE:
            return wire.Constraint(choice=wire.ChoiceConstraint(values=constraint.choices))
        case ConstraintKind.JSON_OBJECT:
            return wire.Constraint(json_object=True)
        case ConstraintKind.REGEX:
            return wire.Constraint(regex=constraint.text)
        case _:
            return wire.Constraint(grammar=constraint.text)


async def generate(stub: Any, request: wire.GenerateRequest) -> list[int]:
    tokens: list[int] = []
    async for response in stub.Generate(request):
        tokens += response.token_ids
    return tokens


async def test_tokens_over_grpc_equal_tokens_in_process(config: EngineConfig, head_target: str, tmp_path: Path) -> None:
    in_process = build_engine(config)
    cases = [
        (prompt, sampling, constraint) for prompt in PROMPTS for sampling in SAMPLINGS for constraint in CONSTRAINTS
    ]
    wanted = [expected(in_process, *case) for case in cases]
    process = EngineProcess(
        EngineOptions(engine=config, head_target=head_target, unix_path=tmp_path / "e.sock"), build_engine, _no_archive
    )
    task = asyncio.create_task(process.run())
    try:
        await eventually(lambda: process._state.now.accepted, "the head accepts the engine", TIMEOUT_S)
        async with dial(f"unix:{tmp_path / 'e.sock'}") as channel:
            stub = wire.EngineServiceStub(channel)
            # All at once: batch mates, chunks and the prefix cache must not matter.
            got = await asyncio.gather(*(generate(stub, to_wire(*case)) for case in cases))
    finally:
        process.stop("end of test", 0.0)
        await task
    assert got == wanted


def _no_archive(config: EngineConfig) -> bytes:
    return b""

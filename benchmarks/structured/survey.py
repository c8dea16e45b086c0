"""Has random constraints answered by a deployment, and every finished answer judged."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from benchmarks.structured.languages import random_grammar, random_regex
from benchmarks.structured.schemas import random_schema
from benchmarks.structured.validation import why_not

Kind = Literal["schema", "regex", "lark", "gbnf"]
KINDS: tuple[Kind, ...] = ("schema", "regex", "lark", "gbnf")


@dataclass(frozen=True, slots=True)
class Plan:
    """So many constraints of each kind, so many answers of each."""

    num_constraints: int = 200
    num_answers: int = 5
    max_tokens: int = 400
    concurrency: int = 16
    first_seed: int = 0
    kinds: tuple[Kind, ...] = KINDS


@dataclass(frozen=True, slots=True)
class Case:
    """A constraint, as the fields of a request, and what says why a text does not satisfy it."""

    kind: Kind
    seed: int
    fields: dict[str, Any]
    why_not: Callable[[str], str | None]


@dataclass(slots=True)
class Report:
    """Answers by kind and by how they ended: finished, cut, refused. `problems` is empty when everything held."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    finished: set[tuple[str, int]] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = ["kind    constraints with a finished answer  finished  cut by max_tokens  wrong"]
        for kind in KINDS:
            num_constraints = sum(each == kind for each, _ in self.finished)
            finished, cut = self.counts[kind, "finished"], self.counts[kind, "cut"]
            lines.append(f"{kind:8}{num_constraints:35}{finished:10}{cut:19}{self.counts[kind, 'wrong']:7}")
        return "\n".join([*lines, "problems:", *(f"  {problem}" for problem in self.problems or ["none"])])


def case_of(kind: Kind, seed: int) -> Case:
    if kind == "schema":
        schema = random_schema(seed)
        wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return Case(kind, seed, {"response_format": wrapped}, lambda text: why_not(text, schema))
    if kind == "regex":
        language = random_regex(seed)
        pattern = language.as_regex()
        fields = {"structured_outputs": {"regex": pattern}}
        return Case(kind, seed, fields, lambda text: None if re.fullmatch(pattern, text) else "does not match")
    language = random_grammar(seed)
    grammar = language.as_lark() if kind == "lark" else language.as_gbnf()
    fields = {"structured_outputs": {"grammar": grammar}}
    return Case(kind, seed, fields, lambda text: None if language.has(text) else "is no sentence")


async def survey(url: str, plan: Plan) -> Report:
    """At temperature 1, in turn over chat and completions, whole and streamed."""
    report = Report()
    cases = [
        (case_of(kind, plan.first_seed + number), answer)
        for number in range(plan.num_constraints)
        for kind in plan.kinds
        for answer in range(plan.num_answers)
    ]
    waiting = iter(enumerate(cases))
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:

        async def work() -> None:
            for number, (case, answer) in waiting:
                await _ask(client, plan, report, case, answer, number)

        await asyncio.gather(*(work() for _ in range(plan.concurrency)))
    return report


async def _ask(client: httpx.AsyncClient, plan: Plan, report: Report, case: Case, answer: int, number: int) -> None:
    is_chat, stream = number % 2 == 0, number % 3 == 0
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}
    body = {
        **prompt,
        **case.fields,
        "temperature": 1.0,
        "seed": answer,
        "max_tokens": plan.max_tokens,
        "stream": stream,
    }
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    response = await client.post(path, json=body)
    if response.status_code != 200:
        report.counts[case.kind, "wrong"] += 1
        report.problems.append(
            f"{case.kind} {case.seed}: {response.status_code} {response.text[:300]} for {case.fields}"
        )
        return
    reason, text = _streamed(response.text) if stream else _whole(response.json())
    if reason != "stop":
        report.counts[case.kind, "cut"] += 1
        if reason != "length":
            report.problems.append(f"{case.kind} {case.seed}: ended with {reason}: {text[:200]}")
        return
    report.counts[case.kind, "finished"] += 1
    report.finished.add((case.kind, case.seed))
    if wrong := case.why_not(text):
        report.counts[case.kind, "wrong"] += 1
        report.problems.append(f"{case.kind} {case.seed}: {wrong}: {text!r} for {case.fields}")


def _whole(body: dict[str, Any]) -> tuple[str, str]:
    choice = body["choices"][0]
    return choice["finish_reason"], choice["message"]["content"] if "message" in choice else choice["text"]


def _streamed(events: str) -> tuple[str, str]:
    """The reason "error" when the stream has one, with its message."""
    reason, text = "", ""
    for line in events.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            return "error", str(event["error"]["message"])
        choice = event["choices"][0]
        text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        reason = choice["finish_reason"] or reason
    return reason, text

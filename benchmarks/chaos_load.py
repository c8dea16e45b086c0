"""Clients under chaos: one streamed completion after another, each on a connection of its own."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

_CONNECT_S = 10.0
_TIMEOUT_S = 120.0
PROMPTS = tuple(f"{number} {word}" for number in range(4) for word in ("red doors", "long roads", "small fires"))


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that did not end as it should; `client_port` tells which gateway held its connection."""

    at_s: float
    client_port: int | None
    what: str


@dataclass
class Clients:
    """`num_clients` at one time until `stop` is set. The first answer to a prompt, taken before, is the right one."""

    url: str
    num_clients: int
    num_tokens: int
    seed: int = 0
    num_answers: int = 0
    failures: list[Failure] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _expected: dict[str, str] = field(default_factory=dict)

    async def learn(self) -> None:
        """Asks every prompt once, undisturbed."""
        for prompt in PROMPTS:
            text, failure = await self._ask(prompt)
            if failure is not None:
                raise RuntimeError(f"failed before anything was disturbed: {failure.what}")
            self._expected[prompt] = text

    async def run(self) -> None:
        await asyncio.gather(*(self._one_client(random.Random(f"{self.seed}-{i}")) for i in range(self.num_clients)))

    async def _one_client(self, chance: random.Random) -> None:
        while not self.stop.is_set():
            prompt = chance.choice(PROMPTS)
            text, failure = await self._ask(prompt)
            if failure is None and text != self._expected[prompt]:
                failure = Failure(_now_s(), None, f"another text for {prompt!r}: {text!r}")
            self.num_answers += 1
            if failure is not None:
                self.failures.append(failure)

    async def _ask(self, prompt: str) -> tuple[str, Failure | None]:
        body = {"model": "any", "prompt": prompt, "max_tokens": self.num_tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True}
        port: int | None = None
        text, finish = "", None

        async def note_port(event: str, info: dict[str, Any]) -> None:
            nonlocal port
            if event == "connection.connect_tcp.complete":
                port = info["return_value"].get_extra_info("client_addr")[1]

        timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S)
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False) as client,
                client.stream(
                    "POST", f"{self.url}/v1/completions", json=body, extensions={"trace": note_port}
                ) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    return text, Failure(_now_s(), port, f"{response.status_code} {response.text}")
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                        if "error" in event:
                            return text, Failure(_now_s(), port, json.dumps(event["error"]))
                        for choice in event["choices"]:
                            text += choice["text"]
                            finish = choice["finish_reason"] or finish
        except httpx.HTTPError as error:
            return text, Failure(_now_s(), port, repr(error))
        return text, None if finish == "length" else Failure(_now_s(), port, f"ended with {finish}")


def _now_s() -> float:
    return asyncio.get_running_loop().time()

"""All ranks behind one HTTP transport: give it to an httpx client, and requests are answered without a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from types import TracebackType

import httpx

from services.cli import flag_table
from services.launcher import plan
from services.launcher.plan import ChildSpec
from services.launcher.restart_policy import WELL_AFTER_S, RestartPolicy
from services.offline.rank_process import RankDied, RankProcess

# A request under which so many ranks died is the likely cause.
_MAX_LOSSES = 2
_STOP_S = 10.0
# A rank's flags stand on its command line; to it, MUSTER_PORT would mean something else.
_OWN_VARIABLES = frozenset(flag.variable for flag in flag_table.ALL)


class OfflineError(Exception):
    """No rank can answer any more; the message says why."""


class OfflineTransport(httpx.AsyncBaseTransport):
    """One child process per rank, each with a model of its own. `async with` starts and ends them.

        async with OfflineTransport(ranks) as transport:
            client = httpx.AsyncClient(transport=transport, base_url="http://offline")
            answer = await client.post("/v1/completions", json={...})

    A rank that dies is started again, and what it ran is asked of another; a request under which two died is answered
    with 500. Requests may be many at a time: the ranks batch them.
    """

    def __init__(self, ranks: Sequence[ChildSpec], *, on_line: Callable[[str, str], None]) -> None:
        """`ranks` are from services.offline.options; `on_line` gets what each says, with its name."""
        self._specs = ranks
        self._on_line = on_line
        self._ranks: dict[str, RankProcess] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._given_up: list[str] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> OfflineTransport:
        """Returns once every rank answers. Raises OfflineError."""
        self._keeping = [asyncio.create_task(self._keep(spec), name=spec.name) for spec in self._specs]
        try:
            while not self._given_up and not self._all_ready():
                await self._wait_for_change()
            if self._given_up:
                raise OfflineError(self._given_up[0])
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the ranks; what they run is lost."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(rank.stop(_STOP_S) for rank in self._ranks.values()))
        self._ranks.clear()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises OfflineError when all ranks were given up."""
        body = (await request.aread()).decode()
        for _ in range(_MAX_LOSSES):
            rank = await self._least_busy()
            try:
                reply = await rank.ask(request.method, request.url.raw_path.decode(), body)
            except RankDied as died:
                last = died
                continue
            headers = {"content-type": "application/json", "x-request-id": reply.request_id}
            return httpx.Response(reply.status, headers=headers, content=reply.body.encode(), request=request)
        message = f"The request lost its rank {_MAX_LOSSES} times, last: {last}."
        error = {"message": message, "type": "server_error", "param": None, "code": "engine_failed"}
        return httpx.Response(500, json={"error": error}, request=request)

    async def _least_busy(self) -> RankProcess:
        while True:
            ready = [rank for rank in self._ranks.values() if rank.is_ready]
            if ready:
                return min(ready, key=lambda rank: rank.num_waiting)
            if len(self._given_up) == len(self._specs):
                raise OfflineError("; ".join(self._given_up))
            await self._wait_for_change()

    async def _keep(self, spec: ChildSpec) -> None:
        """Runs one rank, again and again while there is hope."""
        policy = RestartPolicy()
        clock = asyncio.get_running_loop().time
        while True:
            environment = plan.child_environment(spec, os.environ, own_variables=_OWN_VARIABLES)
            try:
                rank = await RankProcess.start(spec, environment, lambda line: self._on_line(spec.name, line))
            except OSError as error:
                self._give_up(f"{spec.name} could not be started: {error.strerror}")
                return
            self._ranks[spec.name] = rank
            ready_s: float | None = None
            try:
                await rank.ready()
                ready_s = clock()
                self._notify()
                died = await rank.wait()
            except RankDied as error:
                died = error
            is_early = ready_s is None or clock() - ready_s < WELL_AFTER_S
            # What cannot load says why, and would say it again.
            delay_s = None if ready_s is None and not died.by_signal else policy.delay_after_death(early=is_early)
            if delay_s is None:
                self._give_up(str(died))
                return
            self._on_line(spec.name, f"{died}; starting it again in {delay_s:g} s")
            await asyncio.sleep(delay_s)

    def _give_up(self, why: str) -> None:
        self._given_up.append(why)
        self._notify()

    def _all_ready(self) -> bool:
        return len(self._ranks) == len(self._specs) and all(rank.is_ready for rank in self._ranks.values())

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_for_change(self) -> None:
        await self._changed.wait()

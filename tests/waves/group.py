"""A lockstep group as a transition system: the production logic of head and ranks, with everything around it.

A state is a head, three ranks with a channel in each direction, gateways with their requests, and what may still go
wrong. `successors` gives every way in which it can go on: each message arrives whenever it likes, in order on its own
stream and in no order with anything else; requests come at any time to any rank; ranks reach their exchanges, and see
what came out of them, at any time.

What keeps the number of states small, and why nothing is lost by it:
- Ranks other than the first are alike, and so are gateways: states that differ only by who is who are one.
- A gateway's request is under way until it is accepted. On its way it could be anywhere, and so it is nowhere: it
  arrives at any rank at any later time. That a road broke meanwhile, and that another rank was chosen, is included.
- A vote and the step it allows are one exchange: between the two, no rank looks at anything else.
- Pure methods are asked once for each state of their object: later, the answer is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any, NamedTuple

from muster import v1 as wire

from engine.waves import MemberState, Vote, WaveMember
from services.engine import wave_convert as rank_side
from services.head import wave_convert as head_side
from services.head.waves import Place, Station, Waves, WavesState

NUM_RANKS = 3


@dataclass(frozen=True)
class Scenario:
    """What happens at most. `requests` are those of each gateway, one after another."""

    requests: tuple[int, ...] = (1, 1)
    sync_interval: int = 1
    crashes: int = 0  # of a rank's process, which is replaced
    breaks: int = 0  # of a rank's stream to the head
    head_restarts: int = 0
    pauses: int = 0  # by an operator, each taken back some time
    failures: int = 0  # of forming a group, on one rank
    departures: int = 0  # of clients, whose requests end without an answer
    breaks_show: bool = True  # a rank may notice that another one has left their exchange; a frozen one nobody notices


class Budget(NamedTuple):
    crashes: int
    breaks: int
    head_restarts: int
    pauses: int
    failures: int
    departures: int


class Exchange(Enum):
    """Where a rank is with the exchange that it has come to."""

    NONE = "in none"
    WAITS = "waits for the others"
    STEPPED = "all were there, and all step"
    ENDED = "all were there, and the vote was that nobody has work"
    PAUSED = "all were there, and the vote was to pause"


class Stream(Enum):
    """A rank's stream to the head, which says nothing on it before it has heard the first frame."""

    NONE = "none"
    OPEN = "opened"
    HEARD = "heard"


class Rank(NamedTuple):
    place: int  # as the head sees it
    member: int  # DEAD without a process
    stream: Stream
    exchange: Exchange
    to_rank: tuple[int, ...]
    to_head: tuple[int, ...]
    gateways: tuple[int, ...]  # whose requests are here; each as the number of its unfinished ones


class State(NamedTuple):
    head: int
    ranks: tuple[Rank, ...]
    gateways: tuple[int, ...]  # whose requests are under way
    budget: Budget


DEAD = -1
NONE, WAITS = Exchange.NONE, Exchange.WAITS
_OUTCOMES = {
    Exchange.ENDED: Vote(has_work=False, wants_pause=False),
    Exchange.PAUSED: Vote(has_work=True, wants_pause=True),
}
Move = tuple[str, State]


class Violation(Exception):
    """The group did what it must never do."""


class Numbered:
    """Objects by number, equal ones by the same."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._objects: list[Any] = []

    def number(self, item: Any) -> int:
        found = self._numbers.get(item)
        if found is None:
            found = self._numbers[item] = len(self._objects)
            self._objects.append(item)
        return found

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]


class Group:
    """The transition system of a scenario, for the given logic."""

    def __init__(
        self, scenario: Scenario, *, member_class: type[WaveMember] = WaveMember, waves_class: type[Waves] = Waves
    ) -> None:
        self.scenario = scenario
        self._member_class = member_class
        self._waves_class = waves_class
        self._members = Numbered()
        self._heads = Numbered()  # without places
        self._places = Numbered()
        self._frames = Numbered()  # serialised
        self._known: dict[Any, Any] = {}

    # States

    def start(self, *, formed: bool = True) -> State:
        """Before the first frame, or, `formed`, with an idle group."""
        scenario = self.scenario
        fresh = Waves(range(NUM_RANKS)).state
        place, member = self._places.number(Place()), self._members.number(MemberState())
        rank = Rank(place, member, Stream.NONE, NONE, (), (), ())
        budget = Budget(*(getattr(scenario, name) for name in Budget._fields))
        state = State(self._heads.number(fresh._replace(places=())), (rank,) * NUM_RANKS, scenario.requests, budget)
        while formed and not self._is_asleep(state, done=False):
            state = next(move for label, move in self.successors(state) if not label.startswith(("ask", *_FAULTS)))
        return self._canonical(state)

    def is_good(self, state: State) -> bool:
        """Every request was answered, everybody sleeps, and nothing is under way."""
        return self._is_asleep(state, done=True)

    def is_pausing(self, state: State) -> bool:
        return bool(self._heads[state.head].pausing)

    def is_still(self, state: State) -> bool:
        """The head says that the group is paused, and no rank steps, or is about to."""
        head: WavesState = self._heads[state.head]
        return (
            head.pausing
            and not head.running
            and not any(self._runs(rank) or any(map(self._is_start, rank.to_rank)) for rank in state.ranks)
        )

    def is_misjudged(self, state: State) -> bool:
        """The head has heard all that was said, and takes a group to be idle that runs."""
        head: WavesState = self._heads[state.head]
        if head.running or any(rank.to_head or rank.stream is not Stream.HEARD for rank in state.ranks):
            return False
        together = all(self._places[rank.place].station is Station.IN for rank in state.ranks)
        # A rank that has yet to see the end of a wave is not meant.
        return together and any(
            self._runs(rank) and self._members[rank.member].wave >= head.wave for rank in state.ranks
        )

    def describe(self, state: State) -> str:
        lines = [f"  head {self._heads[state.head]}", f"  gateways {state.gateways}"]
        for rank in state.ranks:
            member = "dead" if rank.member == DEAD else self._members[rank.member]
            to_rank = [self._frame_text(wire.SyncWaveResponse, frame) for frame in rank.to_rank]
            to_head = [self._frame_text(wire.SyncWaveRequest, frame) for frame in rank.to_head]
            lines.append(
                f"  {self._places[rank.place]} {member} {rank.stream} {rank.exchange} "
                f"work={rank.gateways} <- {to_rank} -> {to_head}"
            )
        return "\n".join(lines)

    # Transitions

    def successors(self, state: State) -> Iterator[Move]:
        """Every way to go on; raises Violation when one of them is forbidden."""
        for index, rank in enumerate(state.ranks):
            if index == 2 and rank == state.ranks[1]:
                continue  # its twin has moved already
            if rank.member == DEAD:
                yield from self._dead_moves(state, index, rank)
            else:
                yield from self._rank_moves(state, index, rank)
                yield from self._faults(state, index, rank)
        yield from self._operator_moves(state)
        if state.budget.head_restarts:
            yield "head restarts", self._restart_head(state)

    def _rank_moves(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        free = rank.exchange is NONE
        if rank.to_head:
            yield f"head hears {index}", self._head_hears(state, index, rank)
        if rank.to_rank and (free or self._is_start(rank.to_rank[0]) or self._is_ended_by_force(rank)):
            yield f"{index} hears", self._rank_hears(state, index, rank)
        if rank.stream is Stream.NONE:
            moved = self._say(rank._replace(stream=Stream.OPEN), "connected", has_work=bool(rank.gateways))
            if not free and moved.member != rank.member:
                raise Violation("a rank that waits in an exchange changes because its stream was opened")
            yield f"{index} connects", self._with(state, index, moved)
        if free:
            for at, unfinished in enumerate(state.gateways):
                if at and state.gateways[at - 1] == unfinished:
                    continue
                accepted = rank._replace(gateways=tuple(sorted((*rank.gateways, unfinished))))
                rest = (*state.gateways[:at], *state.gateways[at + 1 :])
                yield f"ask {index}", self._with(state, index, self._say(accepted, "wake", has_work=True), rest)
            if self._runs(rank):
                came = self._set(state, index, rank._replace(exchange=WAITS))
                yield f"{index} comes to its exchange", self._meet(came)
        elif rank.exchange is not WAITS:
            yield f"{index} leaves its exchange", self._leave_exchange(state, index, rank)
        yield from self._group_moves(state, index, rank)

    def _group_moves(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        member: MemberState = self._members[rank.member]
        if member.epoch and not member.formed:
            if all(self._epoch(other) == member.epoch for other in state.ranks):
                yield f"{index} has formed", self._with(state, index, self._say_with_work(rank, "formed"))
            if state.budget.failures:
                budget = state.budget._replace(failures=state.budget.failures - 1)
                failed = self._say_with_work(rank, "broke")
                yield f"fault: {index} cannot form", self._with(state._replace(budget=budget), index, failed)
        elif (
            rank.exchange is not NONE
            and self.scenario.breaks_show
            and any(self._epoch(other) != member.epoch for other in state.ranks)
        ):
            broken = self._say_with_work(rank._replace(exchange=NONE), "broke")
            yield f"{index} sees its exchange break", self._with(state, index, broken)

    def _dead_moves(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        station = self._places[rank.place].station
        if station is not Station.GONE:
            yield f"head misses {index}", self._head_does(state, index, "gone", index)
        if station in (Station.GONE, Station.UNKNOWN):
            new = rank._replace(member=self._members.number(MemberState()))
            yield f"{index} is replaced", self._with(state, index, new)

    def _faults(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        budget = state.budget
        silent = rank._replace(stream=Stream.NONE, to_rank=(), to_head=())
        if budget.breaks and rank.stream is not Stream.NONE:
            left = state._replace(budget=budget._replace(breaks=budget.breaks - 1))
            yield f"fault: stream of {index} breaks", self._with(left, index, silent)
        if budget.crashes:
            left = state._replace(budget=budget._replace(crashes=budget.crashes - 1))
            dead = silent._replace(member=DEAD, exchange=NONE, gateways=())
            asked_again = tuple(sorted((*state.gateways, *rank.gateways)))
            yield f"fault: {index} dies", self._with(left, index, dead, asked_again)
        if budget.departures and rank.exchange is NONE and rank.gateways:
            left = state._replace(budget=budget._replace(departures=budget.departures - 1))
            yield f"fault: client of {index} leaves", self._with(left, index, rank._replace(gateways=rank.gateways[1:]))

    def _operator_moves(self, state: State) -> Iterator[Move]:
        if self.is_pausing(state):
            yield "resume", self._head_does(state, None, "resume")
        elif state.budget.pauses:
            left = state._replace(budget=state.budget._replace(pauses=state.budget.pauses - 1))
            yield "pause", self._head_does(left, None, "pause")

    def _restart_head(self, state: State) -> State:
        place = self._places.number(Place())
        ranks = (rank._replace(place=place, stream=Stream.NONE, to_rank=(), to_head=()) for rank in state.ranks)
        fresh = Waves(range(NUM_RANKS)).state._replace(places=())
        budget = state.budget._replace(head_restarts=state.budget.head_restarts - 1)
        return self._canonical(State(self._heads.number(fresh), tuple(ranks), state.gateways, budget))

    # Messages

    def _head_hears(self, state: State, index: int, rank: Rank) -> State:
        state = self._set(state, index, rank._replace(to_head=rank.to_head[1:], stream=Stream.HEARD))
        return self._head_does(state, index, "hear", rank.to_head[0])

    def _head_does(self, state: State, index: int | None, method: str, *arguments: int) -> State:
        places = tuple(rank.place for rank in state.ranks)
        key = (state.head, places, index, method, arguments)
        if key not in self._known:
            full = self._heads[state.head]._replace(places=tuple(self._places[place] for place in places))
            waves = self._waves_class(state=full)
            if method == "hear":
                assert index is not None
                request = wire.SyncWaveRequest.FromString(self._frames[arguments[0]])
                said = head_side.apply(waves, index, request)
            else:
                said = getattr(waves, method)(*arguments)
            frames: list[list[int]] = [[] for _ in state.ranks]
            for to, frame in said:
                frames[to].append(self._frames.number(head_side.to_response(frame).SerializeToString()))
            after = waves.state
            self._known[key] = (
                self._heads.number(after._replace(places=())),
                tuple(self._places.number(place) for place in after.places),
                tuple(map(tuple, frames)),
            )
        head, places_after, frames_to = self._known[key]
        ranks = tuple(
            rank._replace(place=place, to_rank=rank.to_rank + (to if self.reaches(rank) else ()))
            for rank, place, to in zip(state.ranks, places_after, frames_to, strict=True)
        )
        return self._canonical(state._replace(head=head, ranks=ranks))

    def _rank_hears(self, state: State, index: int, rank: Rank) -> State:
        """One frame; a rank that is forced out of its exchange hears everything up to that."""
        num_heard, exchange = 1, NONE
        if rank.exchange is not NONE and self._is_start(rank.to_rank[0]):
            exchange = rank.exchange  # another thread may take note of it
        elif rank.exchange is not NONE:
            num_heard += next(at for at, frame in enumerate(rank.to_rank) if self._ends(frame, rank))
        for frame in rank.to_rank[:num_heard]:
            before: MemberState = self._members[rank.member]
            rank = self._say_with_work(rank, "hear", frame, index)
            after: MemberState = self._members[rank.member]
            if after.epoch > before.epoch and after.is_first:
                listening = rank_side.listening(after.epoch, "there", rank=0, incarnation=0)
                rank = rank._replace(to_head=(*rank.to_head, self._frames.number(listening.SerializeToString())))
        return self._with(state, index, rank._replace(to_rank=rank.to_rank[num_heard:], exchange=exchange))

    def _say_with_work(self, rank: Rank, method: str, *arguments: object) -> Rank:
        return self._say(rank, method, *arguments, has_work=bool(rank.gateways))

    def _say(self, rank: Rank, method: str, *arguments: Any, has_work: bool) -> Rank:
        key = (rank.member, method, arguments, has_work)
        if key not in self._known:
            member = self._member(rank)
            if method == "hear":
                response = wire.SyncWaveResponse.FromString(self._frames[arguments[0]])
                said = rank_side.apply(member, response, rank=arguments[1], has_work=has_work)
            else:
                said = getattr(member, method)(*arguments, has_work=has_work)
            frames = (rank_side.to_request(frame, rank=0, incarnation=0).SerializeToString() for frame in said)
            self._known[key] = (self._members.number(member.state), tuple(map(self._frames.number, frames)))
        after, frame_numbers = self._known[key]
        to_head = rank.to_head + frame_numbers if rank.stream is not Stream.NONE else ()
        return rank._replace(member=after, to_head=to_head)

    # Exchanges

    def _meet(self, state: State) -> State:
        """Somebody has come to an exchange. All in it must mean the same one; it happens when all members are there."""
        meant: dict[int, MemberState] = {}
        for rank in state.ranks:
            if rank.exchange is WAITS:
                member: MemberState = self._members[rank.member]
                other = meant.setdefault(member.epoch, member)
                if (other.wave, other.step) != (member.wave, member.step) or self._votes(other) != self._votes(member):
                    raise Violation(f"ranks meet in different exchanges: {other} and {member}")
        if any(rank.exchange is not WAITS for rank in state.ranks) or len(meant) > 1:
            return self._canonical(state)
        done = Exchange.STEPPED
        if self._votes(self._members[state.ranks[0].member]):
            votes = (self._member(rank).vote(has_work=bool(rank.gateways)) for rank in state.ranks)
            outcome = reduce(lambda left, right: left.combine(right), votes)
            if not outcome.goes_on:
                done = Exchange.PAUSED if outcome.has_work else Exchange.ENDED
        if done is Exchange.STEPPED:
            self._check_step(state)
        ranks = tuple(rank._replace(exchange=done) for rank in state.ranks)
        return self._canonical(state._replace(ranks=ranks))

    def _check_step(self, state: State) -> None:
        missing = [self._members[rank.member] for rank in state.ranks if not self.takes_part(rank)]
        if missing:
            raise Violation(f"ranks exchange tokens without {missing}")
        first: MemberState = self._members[state.ranks[0].member]
        if not any(rank.gateways for rank in state.ranks) and (first.step == 0 or self._votes(first)):
            raise Violation("all ranks step, and none has work")

    def _leave_exchange(self, state: State, index: int, rank: Rank) -> State:
        """A rank sees what came out of it; after a step, all its requests are answered."""
        free = rank._replace(exchange=NONE)
        if rank.exchange in _OUTCOMES:
            return self._with(state, index, self._say_with_work(free, "agreed", _OUTCOMES[rank.exchange]))
        member = self._member(rank)
        if member.votes_now:
            member.agreed(Vote(has_work=True, wants_pause=False), has_work=bool(rank.gateways))
        member.stepped()
        more = [unfinished - 1 for unfinished in rank.gateways if unfinished > 1]
        stepped = free._replace(member=self._members.number(member.state), gateways=())
        return self._with(state, index, stepped, tuple(sorted((*state.gateways, *more))))

    def takes_part(self, rank: Rank) -> bool:
        """In the exchange of tokens of a step that was agreed upon."""
        return self._runs(rank)

    def reaches(self, rank: Rank) -> bool:
        """What the head says now gets to the rank, unless its stream breaks."""
        return rank.stream is Stream.HEARD

    # Internals

    def _member(self, rank: Rank) -> WaveMember:
        return self._member_class(self._members[rank.member], sync_interval=self.scenario.sync_interval)

    def _votes(self, member: MemberState) -> bool:
        return self._member_class(member, sync_interval=self.scenario.sync_interval).votes_now

    def _runs(self, rank: Rank) -> bool:
        if rank.member == DEAD:
            return False
        key = ("runs", rank.member)
        if key not in self._known:
            self._known[key] = self._member(rank).running
        return bool(self._known[key])

    def _epoch(self, rank: Rank) -> int:
        return 0 if rank.member == DEAD else int(self._members[rank.member].epoch)

    def _is_start(self, frame: int) -> bool:
        return bool(wire.SyncWaveResponse.FromString(self._frames[frame]).HasField("start"))

    def _is_ended_by_force(self, rank: Rank) -> bool:
        return any(self._ends(frame, rank) for frame in rank.to_rank)

    def _ends(self, frame: int, rank: Rank) -> bool:
        response = wire.SyncWaveResponse.FromString(self._frames[frame])
        return response.HasField("disband") and response.epoch == self._epoch(rank)

    def _is_asleep(self, state: State, *, done: bool) -> bool:
        head: WavesState = self._heads[state.head]
        if head.running or head.wanted or head.pausing or (done and state.gateways):
            return False
        for rank in state.ranks:
            if rank.member == DEAD or rank.stream is not Stream.HEARD or rank.exchange is not NONE:
                return False
            if rank.to_rank or rank.to_head or rank.gateways:
                return False
            if self._places[rank.place] != Place(Station.IN, head.epoch) or self._runs(rank):
                return False
            if self._epoch(rank) != head.epoch:
                return False
        return True

    def _set(self, state: State, index: int, rank: Rank) -> State:
        return state._replace(ranks=(*state.ranks[:index], rank, *state.ranks[index + 1 :]))

    def _with(self, state: State, index: int, rank: Rank, gateways: tuple[int, ...] | None = None) -> State:
        moved = self._set(state, index, rank)
        return self._canonical(moved if gateways is None else moved._replace(gateways=gateways))

    def _canonical(self, state: State) -> State:
        first, second, third = state.ranks
        if _order(third) < _order(second):
            return state._replace(ranks=(first, third, second))
        return state

    def _frame_text(self, kind: Any, frame: int) -> str:
        return " ".join(str(kind.FromString(self._frames[frame])).split())


def _order(rank: Rank) -> tuple[object, ...]:
    return (rank.place, rank.member, rank.stream.name, rank.exchange.name, *rank[4:])


_FAULTS = ("fault", "head restarts", "pause")

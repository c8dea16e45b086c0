"""A lockstep group as a transition system: the production logic of head and ranks, with everything around it.

A state is a head, three ranks with a channel in each direction, gateways with their requests, and what may still go
wrong. `successors` gives every way in which it can go on: each message arrives whenever it likes, in order on its own
stream and in no order with anything else; requests come at any time to any rank; ranks reach their exchanges, and see
what came out of them, at any time.

What keeps the number of states small, and why nothing is lost by it:
- Ranks other than the first are alike, and so are gateways: states that differ only by who is who are one. Not where
  the group goes on without a rank: then the first may be any.
- A gateway's request is under way until it is accepted. On its way it could be anywhere, and so it is nowhere: it
  arrives at any rank at any later time. That a road broke meanwhile, and that another rank was chosen, is included.
- A vote and the step it allows are one exchange: between the two, no rank looks at anything else.
- Pure methods are asked once for each state of their object: later, the answer is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from engine.waves import MemberState, Vote, WaveMember
from services.head.waves import Station, Waves
from tests.waves.logic import Logic
from tests.waves.state import DEAD, NUM_RANKS, Budget, Exchange, Rank, Scenario, State, Stream, Violation
from tests.waves.view import View

NONE, WAITS = Exchange.NONE, Exchange.WAITS
_OUTCOMES = {
    Exchange.ENDED: Vote(has_work=False, wants_pause=False),
    Exchange.PAUSED: Vote(has_work=True, wants_pause=True),
}
Move = tuple[str, State]


class Group:
    """The transition system of a scenario, for the given logic."""

    def __init__(
        self, scenario: Scenario, *, member_class: type[WaveMember] = WaveMember, waves_class: type[Waves] = Waves
    ) -> None:
        self.scenario = scenario
        self._logic = Logic(scenario, member_class, waves_class)
        self.view = View(self._logic)

    def start(self, *, formed: bool = True) -> State:
        """Before the first frame, or, `formed`, with an idle group."""
        scenario = self.scenario
        head, place = self._logic.fresh_head()
        member = self._logic.members.number(MemberState())
        rank = Rank(place, member, Stream.NONE, NONE, (), (), (), ())
        budget = Budget(*(getattr(scenario, name) for name in Budget._fields))
        state = State(head, (rank,) * NUM_RANKS, scenario.requests, budget)
        while formed and not self.view.is_asleep(state):
            state = next(move for label, move in self.successors(state) if not label.startswith(("ask", *_FAULTS)))
        return self._canonical(state)

    # Transitions

    def successors(self, state: State) -> Iterator[Move]:
        """Every way to go on; raises Violation when one of them is forbidden."""
        for index, rank in enumerate(state.ranks):
            if rank.member == DEAD:
                yield from self._dead_moves(state, index, rank)
            else:
                yield from self._rank_moves(state, index, rank)
                yield from self._faults(state, index, rank)
            if self.scenario.shrinks and self._station(rank) is Station.GONE:
                yield f"head goes on without {index}", self._head_does(state, None, "excuse", index)
        yield from self._operator_moves(state)
        if state.budget.head_restarts:
            yield "head restarts", self._restart_head(state)

    def _rank_moves(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        free = rank.exchange is NONE
        if rank.to_head:
            yield f"head hears {index}", self._head_hears(state, index, rank)
        if rank.to_rank and (free or self._logic.is_start(rank.to_rank[0]) or self._is_ended_by_force(rank)):
            yield f"{index} hears", self._rank_hears(state, index, rank)
        if rank.stream is Stream.NONE:
            moved = self._say_with_work(rank._replace(stream=Stream.OPEN), "connected")
            if not free and moved.member != rank.member:
                raise Violation("a rank that waits in an exchange changes because its stream was opened")
            yield f"{index} connects", self._with(state, index, moved)
        if free:
            for at, unfinished in enumerate(state.gateways):
                if at and state.gateways[at - 1] == unfinished:
                    continue
                accepted = rank._replace(gateways=tuple(sorted((*rank.gateways, unfinished))))
                rest = (*state.gateways[:at], *state.gateways[at + 1 :])
                yield f"ask {index}", self._with(state, index, self._say_with_work(accepted, "wake"), rest)
            if self._logic.runs(rank):
                came = self._set(state, index, rank._replace(exchange=WAITS))
                yield f"{index} comes to its exchange", self._meet(came, came.ranks[index])
        elif rank.exchange is not WAITS:
            yield f"{index} leaves its exchange", self._leave_exchange(state, index, rank)
        yield from self._group_moves(state, index, rank)

    def _group_moves(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        member: MemberState = self._logic.members[rank.member]
        together = all(self._logic.epoch(state.ranks[other]) == member.epoch for other in rank.group)
        if member.epoch and not member.formed:
            if together:
                yield f"{index} has formed", self._with(state, index, self._say_with_work(rank, "formed"))
            if state.budget.failures:
                budget = state.budget._replace(failures=state.budget.failures - 1)
                failed = self._say_with_work(rank, "broke")
                yield f"fault: {index} cannot form", self._with(state._replace(budget=budget), index, failed)
        elif rank.exchange is not NONE and self.scenario.breaks_show and not together:
            broken = self._say_with_work(rank._replace(exchange=NONE), "broke")
            yield f"{index} sees its exchange break", self._with(state, index, broken)

    def _dead_moves(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        station = self._station(rank)
        if station not in (Station.GONE, Station.EXCUSED):
            yield f"head misses {index}", self._head_does(state, index, "gone", index)
        if station in (Station.GONE, Station.EXCUSED, Station.UNKNOWN):
            new = rank._replace(member=self._logic.members.number(MemberState()))
            yield f"{REPLACED}{index}", self._with(state, index, new)

    def _faults(self, state: State, index: int, rank: Rank) -> Iterator[Move]:
        budget = state.budget
        silent = rank._replace(stream=Stream.NONE, to_rank=(), to_head=())
        if budget.breaks and rank.stream is not Stream.NONE:
            left = state._replace(budget=budget._replace(breaks=budget.breaks - 1))
            yield f"fault: stream of {index} breaks", self._with(left, index, silent)
        if budget.crashes:
            left = state._replace(budget=budget._replace(crashes=budget.crashes - 1))
            dead = silent._replace(member=DEAD, exchange=NONE, gateways=(), group=())
            asked_again = tuple(sorted((*state.gateways, *rank.gateways)))
            yield f"fault: {index} dies", self._with(left, index, dead, asked_again)
        if budget.departures and rank.exchange is NONE and rank.gateways:
            left = state._replace(budget=budget._replace(departures=budget.departures - 1))
            yield f"fault: client of {index} leaves", self._with(left, index, rank._replace(gateways=rank.gateways[1:]))

    def _operator_moves(self, state: State) -> Iterator[Move]:
        if self.view.is_pausing(state):
            yield RESUME, self._head_does(state, None, "resume")
        elif state.budget.pauses:
            left = state._replace(budget=state.budget._replace(pauses=state.budget.pauses - 1))
            yield "pause", self._head_does(left, None, "pause")

    def _restart_head(self, state: State) -> State:
        head, place = self._logic.fresh_head()
        ranks = (rank._replace(place=place, stream=Stream.NONE, to_rank=(), to_head=()) for rank in state.ranks)
        budget = state.budget._replace(head_restarts=state.budget.head_restarts - 1)
        return self._canonical(State(head, tuple(ranks), state.gateways, budget))

    # Messages

    def _head_hears(self, state: State, index: int, rank: Rank) -> State:
        state = self._set(state, index, rank._replace(to_head=rank.to_head[1:], stream=Stream.HEARD))
        return self._head_does(state, index, "hear", rank.to_head[0])

    def _head_does(self, state: State, index: int | None, method: str, *arguments: int) -> State:
        places = tuple(rank.place for rank in state.ranks)
        answer = self._logic.ask_head(state.head, places, index, method, *arguments)
        ranks = tuple(
            rank._replace(place=place, to_rank=rank.to_rank + (to if self.reaches(rank) else ()))
            for rank, place, to in zip(state.ranks, answer.places, answer.frames, strict=True)
        )
        return self._canonical(state._replace(head=answer.head, ranks=ranks))

    def _rank_hears(self, state: State, index: int, rank: Rank) -> State:
        """One frame; a rank that is forced out of its exchange hears everything up to that."""
        num_heard, exchange = 1, NONE
        if rank.exchange is not NONE and self._logic.is_start(rank.to_rank[0]):
            exchange = rank.exchange  # another thread may take note of it
        elif rank.exchange is not NONE:
            num_heard += next(at for at, frame in enumerate(rank.to_rank) if self._logic.ends(frame, rank))
        for frame in rank.to_rank[:num_heard]:
            after, said, members = self._logic.rank_hears(rank, frame, has_work=bool(rank.gateways))
            rank = self._after(rank, after, said)
            if members:
                rank = rank._replace(group=members)
        return self._with(state, index, rank._replace(to_rank=rank.to_rank[num_heard:], exchange=exchange))

    def _say_with_work(self, rank: Rank, method: str, *arguments: Any) -> Rank:
        return self._after(rank, *self._logic.ask_rank(rank, method, *arguments, has_work=bool(rank.gateways)))

    def _after(self, rank: Rank, member: int, said: tuple[int, ...]) -> Rank:
        to_head = rank.to_head + said if rank.stream is not Stream.NONE else ()
        rank = rank._replace(member=member, to_head=to_head)
        return rank if self._logic.epoch(rank) else rank._replace(group=())

    # Exchanges

    def _meet(self, state: State, came: Rank) -> State:
        """A rank has come to an exchange. All in it must mean the same one; it happens when all members are there."""
        logic, mine = self._logic, self._logic.members[came.member]
        group = [state.ranks[index] for index in came.group]
        for rank in group:
            if rank.exchange is WAITS and logic.epoch(rank) == mine.epoch:
                theirs: MemberState = logic.members[rank.member]
                if (theirs.wave, theirs.step) != (mine.wave, mine.step) or logic.votes(theirs) != logic.votes(mine):
                    raise Violation(f"ranks meet in different exchanges: {theirs} and {mine}")
                if rank.group != came.group:
                    raise Violation(f"ranks of one epoch meet in different groups: {rank.group} and {came.group}")
        if any(rank.exchange is not WAITS or logic.epoch(rank) != mine.epoch for rank in group):
            return self._canonical(state)
        done = Exchange.STEPPED
        if logic.votes(mine):
            votes = (logic.member(rank).vote(has_work=bool(rank.gateways)) for rank in group)
            outcome = reduce(lambda left, right: left.combine(right), votes)
            if not outcome.goes_on:
                done = Exchange.PAUSED if outcome.has_work else Exchange.ENDED
        if done is Exchange.STEPPED:
            self._check_step(group, mine)
        ranks = (
            rank._replace(exchange=done) if index in came.group else rank for index, rank in enumerate(state.ranks)
        )
        return self._canonical(state._replace(ranks=tuple(ranks)))

    def _check_step(self, group: list[Rank], member: MemberState) -> None:
        missing = [self._logic.members[rank.member] for rank in group if not self.takes_part(rank)]
        if missing:
            raise Violation(f"ranks exchange tokens without {missing}")
        if not any(rank.gateways for rank in group) and (member.step == 0 or self._logic.votes(member)):
            raise Violation("all ranks step, and none has work")

    def _leave_exchange(self, state: State, index: int, rank: Rank) -> State:
        """A rank sees what came out of it; after a step, all its requests are answered."""
        free = rank._replace(exchange=NONE)
        if rank.exchange in _OUTCOMES:
            return self._with(state, index, self._say_with_work(free, "agreed", _OUTCOMES[rank.exchange]))
        member = self._logic.member(rank)
        if member.votes_now:
            member.agreed(Vote(has_work=True, wants_pause=False), has_work=bool(rank.gateways))
        member.stepped()
        more = [unfinished - 1 for unfinished in rank.gateways if unfinished > 1]
        stepped = free._replace(member=self._logic.members.number(member.state), gateways=())
        return self._with(state, index, stepped, tuple(sorted((*state.gateways, *more))))

    def takes_part(self, rank: Rank) -> bool:
        """In the exchange of tokens of a step that was agreed upon."""
        return self._logic.runs(rank)

    def reaches(self, rank: Rank) -> bool:
        """What the head says now gets to the rank, unless its stream breaks."""
        return rank.stream is Stream.HEARD

    # Internals

    def _station(self, rank: Rank) -> Station:
        station: Station = self._logic.places[rank.place].station
        return station

    def _is_ended_by_force(self, rank: Rank) -> bool:
        return any(self._logic.ends(frame, rank) for frame in rank.to_rank)

    def _set(self, state: State, index: int, rank: Rank) -> State:
        return state._replace(ranks=(*state.ranks[:index], rank, *state.ranks[index + 1 :]))

    def _with(self, state: State, index: int, rank: Rank, gateways: tuple[int, ...] | None = None) -> State:
        moved = self._set(state, index, rank)
        return self._canonical(moved if gateways is None else moved._replace(gateways=gateways))

    def _canonical(self, state: State) -> State:
        first, second, third = state.ranks
        if not self.scenario.shrinks and _order(third) < _order(second):
            return state._replace(ranks=(first, third, second))
        return state


def _order(rank: Rank) -> tuple[object, ...]:
    return (rank.place, rank.member, rank.stream.name, rank.exchange.name, *rank[4:])


RESUME = "resume"
REPLACED = "replacement of "
_FAULTS = ("fault", "head restarts", "pause")

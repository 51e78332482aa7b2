"""The faults of a run: each has its own source of chance, so that the others stay the same when one is removed."""

from collections import Counter
from typing import assert_never

from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.member import SimMember
from lbg_runtime.sim.settings import Fault, FaultKind
from lbg_runtime.sim.start import member_name
from lbg_runtime.sim.twins import add_twin
from lbg_runtime.sim.world import World


class Misfortune:
    """Makes the faults of one run happen."""

    def __init__(self, world: World, chance: SeededChance) -> None:
        self.happened: Counter[FaultKind] = Counter()
        self._world = world
        self._settings = world.settings
        self._chance = chance

    def expect(self, faults: tuple[Fault, ...]) -> None:
        """Schedule the faults at their times."""
        for fault in faults:
            self._world.schedule.at(fault.at_ms, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def _strike(self, fault: Fault) -> None:
        self.happened[fault.kind] += 1
        world, chance = self._world, self._chance.fork(f"fault {fault.number}")
        alive = world.alive()
        if fault.member is not None:
            alive = [member for member in alive if member is world.life_of(fault.member)]
        member = chance.pick(alive) if alive else None
        match fault.kind:
            case FaultKind.JOIN:
                drawn = chance.between(0, self._settings.planned_members - 1)
                world.start(drawn if fault.member is None else fault.member)
            case FaultKind.CUT_PUBLISHER:
                notices = chance.between(0, self._settings.keep_alive_ms), chance.between(0, 500)
                chance.pick(world.publishers).break_connection(*notices)
            case FaultKind.ROLLING_RESTART:
                world.restart_in_turn(range(self._settings.planned_members), chance.between(0, 300))
            case FaultKind.DEPLOY:
                for each in world.alive():
                    each.stop()
                    world.start_later(each, 0)
            case FaultKind.BROKER_RESTART:
                self._restart_broker(chance)
            case FaultKind.CUT_CONTROL:
                self._cut_control(chance)
            case _ if member is None:
                pass
            case _:
                self._strike_member(fault.kind, member, chance)

    def _strike_member(self, kind: FaultKind, member: SimMember, chance: SeededChance) -> None:
        world, longest_ms = self._world, self._settings.keep_alive_ms
        match kind:
            case FaultKind.KILL:
                member.kill()
                world.start_later(member, chance.between(0, 2_000))
            case FaultKind.STOP:
                member.stop()
                world.start_later(member, chance.between(0, 2_000))
            case FaultKind.LEAVE:
                member.stop()
                # The run waits for its end, to see whether anybody is left.
                world.when_ended(member, lambda: None)
            case FaultKind.PAUSE:
                self._pause(member, chance.between(1, 2 * longest_ms))
            case FaultKind.BLOCK:
                if not member.process.stands_still:
                    until_ms = world.schedule.now_ms + chance.between(1, 4_000)
                    member.pause(until_ms)
                    world.lasts_until(until_ms)
            case FaultKind.DISCONNECT:
                member.client.break_connection(chance.between(0, longest_ms), chance.between(0, longest_ms))
            case FaultKind.END_FLOW:
                handles = member.bound_handles()
                if handles and member.client.client_id is not None:
                    flow = chance.pick(handles).flow
                    if flow is not None:
                        world.broker.end_flow(member.client.client_id, flow)
            case FaultKind.SLOW:
                member.slow_until_ms = world.schedule.now_ms + chance.between(1, 3_000)
            case FaultKind.HANG:
                self._hang(member, chance)
            case FaultKind.TWIN:
                if chance.happens(0.3):
                    # A process that is slow, or cut off, looks dead to whoever starts another.
                    self._pause(member, chance.between(1, 2 * longest_ms))
                add_twin(world, member, chance)
            case (
                FaultKind.JOIN
                | FaultKind.CUT_PUBLISHER
                | FaultKind.ROLLING_RESTART
                | FaultKind.DEPLOY
                | FaultKind.BROKER_RESTART
                | FaultKind.CUT_CONTROL
            ):
                pass
            case _:
                assert_never(kind)

    def _pause(self, member: SimMember, length_ms: int) -> None:
        """The process stands still; if that lasts longer than the keep-alive, the broker gives it up."""
        if member.process.stands_still:
            return
        world, keep_alive_ms = self._world, self._settings.keep_alive_ms
        until_ms = world.schedule.now_ms + length_ms
        member.pause(until_ms)
        world.lasts_until(until_ms)
        if length_ms > keep_alive_ms:
            cut = member.client
            world.schedule.after(keep_alive_ms, lambda: cut.break_connection(0, 0))

    def _hang(self, member: SimMember, chance: SeededChance) -> None:
        """The watchdog ends the process at its limit, or up to a fifth of that later (runtime/watchdog.py)."""
        if member.process.stands_still:
            return
        world, limit_ms = self._world, chance.pick((200, 1_000, 4_000))
        goes_on = chance.happens(0.25)
        length_ms = chance.between(1, limit_ms) if goes_on else limit_ms + chance.between(0, limit_ms // 5)
        until_ms = world.schedule.now_ms + length_ms
        member.hang(until_ms, keeps_settlements=chance.happens(0.3), goes_on=goes_on)
        world.lasts_until(until_ms)
        if not goes_on:
            world.schedule.at(until_ms, member.kill)
            world.start_later(member, chance.between(0, 2_000))

    def _restart_broker(self, chance: SeededChance) -> None:
        world, longest_ms = self._world, self._settings.keep_alive_ms
        until_ms = world.schedule.now_ms + chance.between(1, 2_000)
        world.broker.go_down(until_ms)
        world.lasts_until(until_ms)
        for member in world.alive():
            member.client.break_connection(0, chance.between(0, longest_ms))
        for publisher in world.publishers:
            publisher.break_connection(0, chance.between(0, 500))

    def _cut_control(self, chance: SeededChance) -> None:
        world = self._world
        names = [member_name(index) for index in range(self._settings.planned_members)]
        side = [name for name in names if chance.happens(0.5)] or names[:1]
        until_ms = world.schedule.now_ms + chance.between(1, 8_000)
        world.topic.cut(side, until_ms, one_way=chance.happens(0.3))
        world.lasts_until(until_ms)

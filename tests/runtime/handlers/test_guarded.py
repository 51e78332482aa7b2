"""Effects under a guard, with members that die and handlers that outlive them."""

import asyncio

from lbg_runtime.guard.memory import MemoryGuard


async def test_an_owner_of_the_past_that_finishes_late_leaves_every_effect_once_and_in_order(trial):
    guard, skipped = MemoryGuard(), []
    late, is_late = asyncio.Event(), set()

    async def work(message):
        number = message.key_sequence
        # The first owner gets stuck between the message and its effect, until the next one is done with everything.
        if trial.active().get(0) == "member-0" and number == 3 and message.key not in is_late:
            is_late.add(message.key)
            await late.wait()
        applied = await guard.once(message, lambda before: (*(before or ()), number))
        if not applied:
            skipped.append((message.key, number))

    members = [trial.member(index, 2, work=work) for index in range(2)]
    async with trial.running(*members):
        await trial.until(lambda: len(trial.active()) == 4 and trial.active()[0] == "member-0")
        await trial.publish(40, 4)
        await trial.until(lambda: len(is_late) == 4)
        trial.sessions["member-0"].kill()
        await trial.until(lambda: set(trial.active().values()) == {"member-1"})
        await trial.until(lambda: sum(trial.depths()) == 0 or len(guard.entries["k0"].value) == 10)
        late.set()
        await trial.until(lambda: sum(trial.depths()) == 0)
        await asyncio.sleep(60)
    assert {key: entry.value for key, entry in guard.entries.items()} == {
        f"k{key}": tuple(range(1, 11)) for key in range(4)
    }
    assert skipped, "the late ones"

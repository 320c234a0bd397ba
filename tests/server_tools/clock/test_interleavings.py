"""Several processes on one session, in every order hypothesis can think of: each task is delivered once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Struct

from routecodex.server_tools.clock import due_rules, edits
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.task import SessionTasks, Task, decode, encode
from tests.server_tools.clock.world import MINUTE, START, at, state, task_fields

RULES = DueRules(lease_ms=10_000)


class Holder(Struct):
    """A request that has reserved and not finished."""

    mark: str
    request_id: str
    tasks: tuple[Task, ...]


class Processes(RuleBasedStateMachine):
    """Requests reserve, commit, roll back and die; those that live renew before their lease is up."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.raw = encode(state())
        self.holders: list[Holder] = []
        self.requests = 0
        self.scheduled = 0
        self.delivered: list[tuple[str, int]] = []

    @property
    def stored(self) -> SessionTasks:
        return decode(self.raw)

    def store(self, after: SessionTasks) -> None:
        self.raw = encode(after)

    def circumstances(self, request_id: str = "") -> edits.EditContext:
        return at(self.now, request_id=request_id, rules=RULES)

    @rule(
        ahead=st.integers(-5, 5).map(lambda minutes: minutes * MINUTE),
        repeat=st.sampled_from([None, None, "every 1 minutes", "every 7 minutes"]),
    )
    def schedule(self, ahead: int, repeat: str | None) -> None:
        self.scheduled += 1
        item = task_fields(self.now + ahead, f"task {self.scheduled}", repeat=repeat)
        made = self.circumstances(f"r{self.requests}")
        after, _ = edits.add(self.stored, [item], ids=[f"t{self.scheduled}"], at=made)
        self.store(after)

    @rule()
    def reserve(self) -> None:
        self.requests += 1
        request_id, mark = f"r{self.requests}", f"m{self.requests}"
        after, tasks = edits.reserve(self.stored, mark, at=self.circumstances(request_id))
        self.store(after)
        if tasks:
            self.holders.append(Holder(mark, request_id, tasks))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        after, done = edits.commit(self.stored, holder.tasks, at=self.circumstances(holder.request_id))
        self.store(after)
        occurrences = {task.task_id: task.due_at_ms for task in holder.tasks}
        self.delivered += [(task.task_id, occurrences[task.task_id]) for task in done]
        left = {task.task_id for task in decode(encode(after)).tasks}
        assert {task.task_id for task in done} == {one.task_id for one in holder.tasks} & left

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        after, given_back = edits.roll_back(self.stored, holder.mark)
        self.store(after)
        assert given_back <= len(holder.tasks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))

    @rule(seconds=st.integers(1, 9))
    def wait_a_little(self, seconds: int) -> None:
        self.now += seconds * 1000
        for holder in self.holders:
            after, _ = edits.renew(self.stored, holder.mark, at=self.circumstances())
            self.store(after)

    @precondition(lambda self: not self.holders)
    @rule(minutes=st.integers(1, 30))
    def wait_long(self, minutes: int) -> None:
        self.now += minutes * MINUTE

    @rule()
    def sweep(self) -> None:
        after, _ = edits.prune(self.stored, self.circumstances())
        self.store(after)

    @invariant()
    def no_task_is_in_two_hands(self) -> None:
        held = [task.task_id for holder in self.holders for task in holder.tasks]
        assert len(held) == len(set(held))

    @invariant()
    def every_occurrence_is_delivered_at_most_once(self) -> None:
        assert len(self.delivered) == len(set(self.delivered))

    @invariant()
    def counts_are_what_was_delivered(self) -> None:
        for task in self.stored.tasks:
            times = sum(task_id == task.task_id for task_id, _ in self.delivered)
            assert task.delivery_count == times
            assert task.repeat is not None or (task.delivered_at_ms is not None) == bool(times)

    def teardown(self) -> None:
        """Whatever is due and kept when all have died is delivered by the next request, once."""
        self.holders.clear()
        self.now += RULES.lease_ms
        waiting = {
            task.task_id
            for task in due_rules.live_tasks(self.stored, self.now, RULES)
            if due_rules.should_inject(task, self.now, RULES)
        }
        after, tasks = edits.reserve(self.stored, "last", at=self.circumstances("last"))
        assert {task.task_id for task in tasks} == waiting
        after, done = edits.commit(after, tasks, at=self.circumstances("last"))
        assert {task.task_id for task in done} == waiting
        _, again = edits.reserve(after, "again", at=self.circumstances("last:again"))
        assert again == ()


def test_a_task_whose_retention_ends_while_it_is_delivered_is_not_in_two_hands() -> None:
    """A sequence that the machine found; stateful tests have no `@example`."""
    processes = Processes()
    processes.schedule(ahead=MINUTE, repeat="every 1 minutes")
    processes.wait_long(1)
    processes.wait_long(19)
    processes.reserve()
    processes.holders.clear()
    processes.wait_long(1)
    processes.reserve()
    processes.wait_a_little(1)
    processes.reserve()
    processes.no_task_is_in_two_hands()
    processes.teardown()


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=40)

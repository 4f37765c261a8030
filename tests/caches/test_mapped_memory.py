"""Mapped rows: whatever is written, forked, saved and dropped, each memory holds its own rows; and what is shared."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from triforce.caches import mapped
from triforce.caches.mapped import MappedMemory, forkable_memory, memory_over
from triforce.caches.memory import PlainMemory, Plane, RowLayout, RowMemory
from triforce.session_file import Origin, Saved, read_session, write_session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="rows are mapped on Linux only")

# Rows of 40 and of 4 bytes: pages end inside rows of the one, and hold a thousand rows of the other.
LAYOUT = RowLayout(2, 2, (Plane("keys", 20, torch.float16), Plane("scales", 1, torch.float32)))
CAPACITY = 4096


class Held:
    """A memory and the numbers written to its rows, one per row; the model that the machine compares with."""

    def __init__(self, memory: RowMemory, numbers: list[int]) -> None:
        self.memory = memory
        self.numbers = numbers

    def write(self, numbers: list[int]) -> None:
        start, end = len(self.numbers), len(self.numbers) + len(numbers)
        self.memory = self.memory.prepare(start, end)
        for plane in self.memory.planes:
            plane[:, :, start:end] = torch.tensor(numbers, dtype=plane.dtype)[:, None]
        self.numbers = self.numbers + numbers

    def check(self) -> None:
        for plane in self.memory.planes:
            expected = torch.tensor(self.numbers, dtype=plane.dtype)[:, None].expand(2, 2, -1, plane.shape[3])
            assert torch.equal(plane[:, :, : len(self.numbers)], expected)

    def fork(self) -> Held:
        return Held(self.memory.fork(len(self.numbers)), self.numbers)

    def save(self, path: Path) -> None:
        tokens = np.zeros(len(self.numbers), np.int32)
        saved = Saved(Origin("", "", (), 1.0), tokens, torch.zeros(1, 0, 1, 1), {})
        write_session(path, saved, self.memory.layout, self.memory.planes, len(self.numbers))

    def load(self, path: Path) -> Held:
        return Held(memory_over(read_session(path)[1], CAPACITY), self.numbers)


class Memories(RuleBasedStateMachine):
    """Random histories of several memories that share rows."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Held] = []
        self.next = 0
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self) -> None:
        self.folder.cleanup()

    def add(self, one: Held) -> Held:
        self.all.append(one)
        return one

    @initialize(target=held)
    def begin(self) -> Held:
        memory = forkable_memory(LAYOUT, CAPACITY)
        assert isinstance(memory, MappedMemory)
        one = self.add(Held(memory, []))
        self.rewrite(one, 1.0, 1100)
        return one

    @rule(one=held, share=st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.0]), n=st.sampled_from([1, 7, 103, 1100]))
    def rewrite(self, one: Held, share: float, n: int) -> None:
        one.numbers = one.numbers[: int(share * len(one.numbers))]
        if len(one.numbers) + n <= CAPACITY:
            one.write([(self.next + i) % 2048 for i in range(n)])  # what float16 can tell apart
            self.next += n

    @rule(target=held, one=held)
    def fork(self, one: Held) -> Held:
        return self.add(one.fork())

    @rule(target=held, one=held)
    def save_and_load(self, one: Held) -> Held:
        path = Path(self.folder.name, str(len(self.all)))
        one.save(path)
        return self.add(one.load(path))

    @rule(one=held)
    def forget(self, one: Held) -> None:
        one.memory, one.numbers = forkable_memory(LAYOUT, CAPACITY), []

    @invariant()
    def each_holds_its_own_rows(self) -> None:
        for one in self.all:
            one.check()


TestMemories = Memories.TestCase
TestMemories.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def filled(n: int) -> Held:
    held = Held(forkable_memory(LAYOUT, CAPACITY), [])
    held.write(list(range(n)))
    return held


def private_kilobytes() -> int:
    """What this process alone holds in memory."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise AssertionError("no Pss")


@pytest.fixture
def large() -> MappedMemory:
    """64 MiB of rows."""
    memory = forkable_memory(RowLayout(1, 1, (Plane("keys", 1024, torch.float32),)), 1 << 15)
    assert isinstance(memory, MappedMemory)
    memory.prepare(0, 1 << 14)
    memory.planes[0][:, :, : 1 << 14] = 1.0
    return memory


def test_forks_share_rows_and_pay_for_pages_that_they_write(large: MappedMemory) -> None:
    before = private_kilobytes()
    forks = [large.fork(1 << 14) for _ in range(8)]
    assert sum(float(fork.planes[0][0, 0, : 1 << 14].sum()) for fork in forks) == 8 * 2.0**24
    assert private_kilobytes() - before < 8_000  # one copy of the rows would be 65,536
    for fork in forks:
        fork.prepare(1 << 14, (1 << 14) + 1)
        fork.planes[0][:, :, 1 << 14] = 2.0
    assert private_kilobytes() - before < 10_000


def test_a_saved_file_is_mapped_and_its_forks_share_it(large: MappedMemory, tmp_path: Path) -> None:
    held = Held(large, [1] * (1 << 14))
    held.save(tmp_path / "rows")
    before = private_kilobytes()
    rows = read_session(tmp_path / "rows", verify=False)[1]
    memories = [memory_over(rows, 1 << 15)]
    memories += [memories[0].fork(1 << 14) for _ in range(4)]
    assert private_kilobytes() - before < 8_000
    assert all(isinstance(memory, MappedMemory) for memory in memories)
    assert sum(float(memory.planes[0][0, 0, : 1 << 14].sum()) for memory in memories) == 5 * 2.0**24
    assert private_kilobytes() - before < 65_536 + 8_000  # the page cache's copy, once


def test_the_owner_writes_on_beside_its_forks_without_moving() -> None:
    parent = filled(300)
    memory, fork = parent.memory, parent.fork()
    parent.write(list(range(500)))
    assert parent.memory is memory
    fork.check()


def test_the_owner_leaves_what_a_fork_still_reads_and_only_then() -> None:
    parent = filled(300)
    memory, fork = parent.memory, parent.fork()
    parent.numbers = parent.numbers[:200]
    parent.write([7] * 50)
    assert parent.memory is not memory
    fork.check()
    parent.check()

    parent = filled(300)
    memory, fork = parent.memory, parent.fork()
    del fork
    parent.numbers = parent.numbers[:200]
    parent.write([7] * 50)
    assert parent.memory is memory


def test_a_loaded_memory_that_rewrites_rows_of_its_file_hands_them_to_its_forks(tmp_path: Path) -> None:
    filled(300).save(tmp_path / "rows")
    parent = filled(300).load(tmp_path / "rows")
    parent.numbers = parent.numbers[:50]
    parent.write([7] * 400)
    fork = parent.fork()
    fork.check()
    fork.numbers = fork.numbers[:20]
    fork.write([8] * 500)
    fork.fork().check()
    parent.check()


def test_a_loaded_memory_owns_what_it_appends(tmp_path: Path) -> None:
    filled(300).save(tmp_path / "rows")
    parent = filled(300).load(tmp_path / "rows")
    memory = parent.memory
    parent.write(list(range(400)))
    assert parent.memory is memory
    fork = parent.fork()
    assert isinstance(fork.memory, MappedMemory)
    assert fork.memory.inherited == 700, "its forks share all of it"


def test_it_moves_to_plain_memory_past_what_was_reserved() -> None:
    parent = filled(300)
    fork = parent.fork()
    fork.write([3] * CAPACITY)
    assert isinstance(fork.memory, PlainMemory)
    fork.check()
    other = fork.fork()
    other.write([5] * 10)
    fork.write([6] * 10)
    for one in (parent, fork, other):
        one.check()


@pytest.mark.parametrize("failing", ["memfd_create", "mmap", "map over"])
def test_without_mappings_rows_are_copied(failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(12, "Cannot allocate memory")

    parent = filled(300)
    parent.save(tmp_path / "rows")
    if failing == "memfd_create":
        monkeypatch.setattr(os, "memfd_create", refuse)
    elif failing == "mmap":
        monkeypatch.setattr(mapped._Pages, "map", refuse)
    else:
        monkeypatch.setattr(mapped, "_map_over", refuse)
    loaded = parent.load(tmp_path / "rows")
    assert isinstance(loaded.memory, PlainMemory)
    begun = Held(forkable_memory(LAYOUT, CAPACITY), [])
    for one in (parent, loaded, begun):
        fork = one.fork()
        fork.write([1] * 5000)
        one.write([2] * 20)
        one.check()
        fork.check()


def test_a_system_of_larger_pages_copies_what_it_cannot_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parent = filled(300)
    parent.save(tmp_path / "rows")
    monkeypatch.setattr(mmap, "PAGESIZE", 65536)
    rows = read_session(tmp_path / "rows")[1]
    assert [rows.mapped_bytes(plane) for plane in (0, 1)] == [0, 0]
    loaded = Held(memory_over(rows, CAPACITY), parent.numbers)
    loaded.check()


def test_a_forked_process_and_its_parent_do_not_see_each_others_rows() -> None:
    parent = filled(300)
    read_go, go = os.pipe()
    read_went, went = os.pipe()
    process = os.fork()
    if process == 0:  # the child writes, then reads after its parent wrote
        try:
            os.close(go)
            os.close(read_went)
            parent.numbers = parent.numbers[:100]
            parent.write([9] * 50)
            os.write(went, b"x")
            os.read(read_go, 1)
            parent.check()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(went)
    os.close(read_go)
    os.read(read_went, 1)
    parent.check()
    parent.numbers = parent.numbers[:50]
    parent.write([8] * 80)
    parent.check()
    os.close(go)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(read_went)


def test_the_system_is_asked_to_tell_of_forks_once_and_not_before_memory_is_mapped() -> None:
    code = """
import os, torch
asked = []
os.register_at_fork = lambda **hooks: asked.append(hooks)
from triforce.caches.mapped import forkable_memory
from triforce.caches.memory import Plane, RowLayout
assert not asked
for _ in range(3):
    forkable_memory(RowLayout(1, 1, (Plane("keys", 8, torch.float32),)), 16)
assert len(asked) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

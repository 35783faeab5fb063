"""Micro-batches: every item gets its own result, none fails for another, and the queue has an end."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddu.serving import MicroBatcher, RefusedError


class Machine:
    """Doubles numbers, once it may go on; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def run(self, items: Sequence[int]) -> list[int]:
        self.busy.set()
        assert self.go.wait(10)
        self.batches.append(list(items))
        if -1 in items:
            raise ValueError("a bad item")
        return [2 * item for item in items]

    def busy_with(self, batcher: MicroBatcher[int, int], item: int):
        """Waits until an item is being run, so that others have to wait."""
        future = batcher.submit(item)
        assert self.busy.wait(10)
        return future


@pytest.fixture
def machine():
    machine = Machine()
    yield machine
    machine.go.set()


def test_each_item_gets_its_own_result_from_any_number_of_threads(machine):
    machine.go.set()
    batcher = MicroBatcher(machine.run, batch=8)
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda item: batcher.submit(item).result(10), range(500)))
    batcher.close()
    assert results == [2 * item for item in range(500)]
    assert sorted(item for batch in machine.batches for item in batch) == list(range(500))


def test_what_waits_is_a_batch_in_the_order_of_arrival_and_as_far_as_it_fits(machine):
    batcher = MicroBatcher(machine.run, batch=4)
    machine.busy_with(batcher, 0)
    for item, rows in ((1, 1), (2, 2), (3, 1), (4, 9), (5, 3), (6, 2)):
        batcher.submit(item, rows)
    assert batcher.waiting == 18
    machine.go.set()
    batcher.close()
    assert machine.batches == [[0], [1, 2, 3], [4], [5], [6]]
    assert batcher.waiting == 0


def test_a_batch_waits_a_little_for_others(machine):
    machine.go.set()
    batcher = MicroBatcher(machine.run, batch=2, linger=10.0)
    first = batcher.submit(1)
    time.sleep(0.05)
    assert not first.done()
    batcher.submit(2)  # now it is full
    assert first.result(5) == 2
    batcher.submit(3)
    batcher.close()  # waits for nobody
    assert machine.batches == [[1, 2], [3]]


def test_an_item_that_fails_does_not_take_others_along(machine):
    batcher = MicroBatcher(machine.run, batch=8)
    machine.busy_with(batcher, 0)
    futures = [batcher.submit(item) for item in (1, -1, 3)]
    machine.go.set()
    assert [futures[0].result(10), futures[2].result(10)] == [2, 6]
    with pytest.raises(ValueError, match="a bad item"):
        futures[1].result(10)
    assert batcher.submit(4).result(10) == 8
    batcher.close()


def test_a_full_queue_refuses_at_once_and_says_when_to_try_again(machine):
    batcher = MicroBatcher(machine.run, batch=4, queue=3)
    first = machine.busy_with(batcher, 0)
    waiting = [batcher.submit(1, 2), batcher.submit(2, 1)]
    with pytest.raises(RefusedError) as refused:
        batcher.submit(3)
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    assert refused.value.reason == "The queue is full: 3 of 3 inputs wait. Try again later."
    machine.go.set()
    assert [future.result(10) for future in (first, *waiting)] == [0, 2, 4]
    assert batcher.submit(3, 3).result(10) == 6  # there is room again
    batcher.close()


def test_closing_answers_what_was_accepted_and_takes_nothing_more(machine):
    batcher = MicroBatcher(machine.run, batch=2)
    futures = [machine.busy_with(batcher, 0), *(batcher.submit(item) for item in range(1, 6))]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while not batcher._closed:
        time.sleep(0.001)
    with pytest.raises(RefusedError) as refused:
        batcher.submit(7)
    assert (refused.value.status, refused.value.reason) == (503, "The server is being stopped.")
    machine.go.set()
    closing.join(10)
    assert [future.result(0) for future in futures] == [0, 2, 4, 6, 8, 10]


def test_items_whose_client_has_gone_are_not_run(machine):
    batcher = MicroBatcher(machine.run, batch=8)
    machine.busy_with(batcher, 0)
    gone, there = batcher.submit(1), batcher.submit(2)
    assert gone.cancel()
    machine.go.set()
    assert there.result(10) == 4
    batcher.close()
    assert machine.batches == [[0], [2]]

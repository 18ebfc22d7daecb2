"""Pipeline schedules: complete, in an order that can run, with both ends of a transfer in the same slot."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.shared.trainings import TRAININGS
from emulator.training.main import RANKS
from emulator.training.schedules import CHUNKS, Pass, order, plan

Shape = tuple[int, int, int]
SHAPES = st.tuples(st.integers(2, 6), st.integers(1, 4), st.sampled_from(sorted(CHUNKS.values()))).map(
    lambda drawn: (drawn[0], drawn[0] * drawn[1], drawn[2])
)


@given(SHAPES)
def test_each_micro_batch_goes_through_each_part_once_and_back(shape: Shape) -> None:
    """Every stage computes each of its chunks for each micro-batch, forward before backward."""
    stages, batches, chunks = shape
    for slots in plan(stages, batches, chunks):
        passes = [slot.work for slot in slots if slot.work]
        assert len(passes) == len(set(passes)) == 2 * batches * chunks
        for one in passes:
            assert passes.index(one._replace(backward=False)) <= passes.index(one)


@given(SHAPES)
def test_both_ends_transfer_in_the_same_slot(shape: Shape) -> None:
    """What a stage sends, its peer receives in that slot and needs in a later one; so no group waits for ever."""
    stages, batches, chunks = shape
    laid = plan(stages, batches, chunks)
    assert len({len(slots) for slots in laid}) == 1
    received = [0] * stages
    for number in range(len(laid[0])):
        now = [slots[number] for slots in laid]
        for stage, slot in enumerate(now):
            part = slot.work.chunk * stages + stage if slot.work else -1
            needs = slot.work and (part > 0 if not slot.work.backward else part < stages * chunks - 1)
            received[stage] -= bool(needs)
            assert received[stage] >= 0
            assert sorted(slot.receive_from) == [peer for peer in range(stages) if stage in now[peer].send_to]
        for stage, slot in enumerate(now):
            received[stage] += len(slot.receive_from)
    assert received == [0] * stages


@pytest.mark.parametrize(("stage", "held"), [(0, 4), (1, 3), (2, 2), (3, 1)])
def test_one_forward_one_backward_holds_few_activations(stage: int, held: int) -> None:
    """A stage never holds activations of more micro-batches than there are stages from it to the last."""
    inside, most = 0, 0
    for one in order(stage, 4, 12):
        inside += -1 if one.backward else 1
        most = max(most, inside)
    assert most == held


def test_steady_state_alternates() -> None:
    """The textbook's order of the second of three stages."""
    passes = order(1, 3, 4)
    said = " ".join(("B" if one.backward else "F") + str(one.batch) for one in passes)
    assert said == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert all(one != other for one, other in pairwise(passes))


def test_interleaving_shortens_the_bubble() -> None:
    """With two chunks a stage idles for fewer of its slots."""
    idle = {
        name: sum(slot.work is None for slot in plan(4, 8, chunks)[0]) / 8 / chunks for name, chunks in CHUNKS.items()
    }
    assert idle["interleaved"] < 0.7 * idle["1f1b"]


def test_a_backward_pass_begins_with_the_last_chunk() -> None:
    """On its way back a micro-batch comes to the model's last part first."""
    first = next(one for one in order(1, 2, 4, 2) if one.backward)
    assert first == Pass(True, 1, 0)


def test_every_training_has_its_rank() -> None:
    """Words that a fleet takes are those that a rank knows."""
    assert set(RANKS) == set(TRAININGS)

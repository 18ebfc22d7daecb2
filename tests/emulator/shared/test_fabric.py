"""The fabric as Python sees it, and the orders for faults that go through it."""

from pathlib import Path

import pytest

from emulator.shared.fabric import BYTES, Fabric, FabricError, create
from emulator.shared.faults import AMOUNTS, KINDS, FaultError, order


@pytest.fixture
def fabric(tmp_path: Path) -> Fabric:
    """A fresh fabric of five ranks."""
    create(tmp_path / "fabric", 5, 2)
    return Fabric(tmp_path / "fabric")


def test_fresh_fabric_is_healthy(fabric: Fabric) -> None:
    """Every rank starts with factors of one, no fault and no progress."""
    assert (fabric.head.ranks, fabric.head.gpus, fabric.head.id_ready) == (5, 2, 0)
    for rank in range(5):
        block = fabric.ranks[rank]
        assert (block.compute_scale, block.link_scale, block.copy_scale, block.throttle) == (1.0, 1.0, 1.0, 1.0)
        assert (block.fault, block.link_down, block.lost, block.iterations) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_order_reaches_one_rank_only(fabric: Fabric, kind: str) -> None:
    """An order sets kind, amount and the factor that belongs to it on the one rank, and counts up its epoch."""
    order(fabric, 3, kind)
    block, other = fabric.ranks[3], fabric.ranks[2]
    assert (KINDS[block.fault], block.amount, block.epoch) == (kind, AMOUNTS[kind], 1)
    assert block.compute_scale == {"slow_gpu": 1.6, "power_cap": 1.6, "background_compute": 1.6}.get(kind, 1.0)
    assert block.link_scale == {"slow_link": 10.0, "nic_downgrade": 4.0, "background_traffic": 8.0}.get(kind, 1.0)
    assert block.proxy_sleep_ms == (1000 if kind == "nccl_delay" else 0)
    assert block.copy_scale == (8.0 if kind == "pcie_downgrade" else 1.0)
    assert (other.fault, other.epoch, other.compute_scale) == (0, 0, 1.0)


def test_unknown_fault_is_refused(fabric: Fabric) -> None:
    """A kind that does not exist is one line that lists those that do; nothing is ordered."""
    with pytest.raises(FaultError, match=r"^unknown fault 'slow_cpu': choose one of none, slow_gpu, .*, late_enter$"):
        order(fabric, 1, "slow_cpu")
    assert fabric.ranks[1].epoch == 0


def test_id_goes_round(fabric: Fabric) -> None:
    """The id that one side puts in is what the other side gets."""
    fabric.put_id(bytes(range(128)))
    assert fabric.wait_id() == bytes(range(128))


@pytest.mark.parametrize("content", [b"", b"x" * BYTES])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is too short or no fabric is refused with its path."""
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(FabricError, match="other"):
        Fabric(path)


def test_too_many_ranks_are_refused(tmp_path: Path) -> None:
    """More ranks than the fabric holds are refused, and no file is made."""
    with pytest.raises(FabricError, match="1 to 64 ranks, not 65"):
        create(tmp_path / "fabric", 65, 1)
    assert not (tmp_path / "fabric").exists()

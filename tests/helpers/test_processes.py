"""Real processes agree with one process, and what is refused."""

import pytest
from torch.multiprocessing import ProcessRaisedException

import labkit
from helpers import processes, proofs

ALL = (
    proofs.data_parallel,
    proofs.ring,
    proofs.sharded,
    proofs.sharded_optimizer,
    proofs.mlp_by_hand,
    proofs.heads_by_hand,
    proofs.tensor_parallel,
    proofs.gpipe,
    proofs.one_forward_one_backward,
)


def test_two_processes_agree_with_one_also_while_a_gpu_is_simulated():
    with labkit.simulated_gpu("T4"):
        found = processes.run(2, *ALL)
    assert list(found.index) == [proof.__name__ for proof in ALL]
    assert (found["largest difference"] < 1e-5).all()
    assert (found["processes"] == 2).all()


def test_what_cannot_run_is_refused():
    with pytest.raises(ValueError, match="at least one process and one proof"):
        processes.run(2)
    with pytest.raises(TypeError, match="in no module that another process can import"):
        processes.run(2, lambda rank, ranks: 0.0)


def test_what_a_rank_raises_is_raised_here():
    with pytest.raises(ProcessRaisedException, match="four layers cannot be divided into 3 equal stages"):
        processes.run(3, proofs.gpipe)


def test_a_proof_that_compares_different_things_says_so():
    """The measure itself: differing gradients differ."""
    changed = proofs.alone()
    next(changed.parameters()).grad[0, 0] += 1  # pyright: ignore
    assert proofs.off(proofs.gradients(changed), proofs.gradients(proofs.alone())) == pytest.approx(1)


def test_in_a_world_too_they_are_processes_of_their_own():
    with labkit.simulated_gpu("T4"), labkit.one_rank(0, of=4):
        found = processes.run(2, proofs.ring)
    assert found.loc["ring", "processes"] == 2 and found.loc["ring", "largest difference"] < 1e-5

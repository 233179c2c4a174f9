"""R2D2 in a whole run: stored sequences, their states and priorities, and bitwise resuming."""

import numpy as np
import pytest
import torch
from support import inline_runs
from support.inline_runs import all_sequences

from starling import tree
from starling.envs.toy import counting_reward
from starling.nets.burn_in import unroll_burnt_in
from starling.types import Batch, Progress

SMALL = ["net.torso.hidden=[8]", "net.core.size=4", "env.num=3", "algo.batch=64", "stop.return=null"]
SHORT = ["algo.capacity=20000", "algo.burn_in=3", "algo.unroll=5", "algo.period=2", "algo.fragment=4"]


def run(steps, *overrides):
    """An inline run on the counting env, whose episodes have 1 to 7 steps."""
    return inline_runs.run("r2d2-memory", steps, "env={id: toy/counting}", *SMALL, *SHORT, *overrides)


@pytest.fixture(scope="module")
def untrained():
    """A run that has only acted: everything was recorded with its current weights."""
    return run(300, "algo.learning_starts=5000", "net.core.kind=lstm")


def test_every_step_is_trained_even_in_episodes_shorter_than_the_burn_in(untrained):
    steps = all_sequences(untrained)
    trained = untrained.learner.algorithm._loss_mask(tree.to_torch(steps)).numpy()
    all_steps = {tuple(obs) for obs in steps.obs[:-1][steps.valid].astype(int).tolist()}
    learned_from = {tuple(obs) for obs in steps.obs[:-1][trained].astype(int).tolist()}
    lengths = {}
    for tag, episode, step in all_steps:
        lengths[tag, episode] = max(lengths.get((tag, episode), 0), step + 1)
    assert min(lengths.values()) <= 2  # shorter than the burn-in
    assert learned_from == all_steps


def test_every_sequence_has_a_trained_step_and_a_priority(untrained):
    steps = all_sequences(untrained)
    algorithm = untrained.learner.algorithm
    assert algorithm._loss_mask(tree.to_torch(steps)).any(0).all()
    assert (algorithm.priority(steps) > 0).all()


def test_carry_is_that_before_the_first_observation(untrained):
    steps = all_sequences(untrained)
    continues = ~steps.first[0]
    assert continues.any()
    for b in np.nonzero(continues)[0]:
        tag, episode, step = (int(x) for x in steps.obs[0, b])
        reward = counting_reward(tag, episode, step - 1, int(steps.carry["action"][b]))
        assert steps.carry["rewards"]["extrinsic"][b] == reward
        assert steps.carry["state"]["h"][b].any()


def test_unrolling_from_the_stored_state_gives_the_recorded_q_values(untrained):
    """Weights have not changed, so Q values agree only if states, previous actions, and rewards are aligned."""
    steps = tree.to_torch(all_sequences(untrained))
    with torch.no_grad():
        q = unroll_burnt_in(untrained.learner.model, steps, burn_in=5)["extrinsic"]
    seen = torch.cat([steps.valid, steps.valid[-1:]])
    torch.testing.assert_close(q[seen], steps.extras["q"]["extrinsic"][seen], rtol=1e-4, atol=1e-5)


def test_delta_q_is_0_with_unchanged_weights_and_positive_after_training(untrained):
    learner = untrained.learner
    steps = tree.to_torch(all_sequences(untrained))
    batch = Batch(steps, torch.ones(steps.batch_size), torch.zeros(steps.batch_size), Progress(), torch.Generator())
    assert learner.algorithm.loss(learner.model, learner.model, batch).metrics()["delta_q_last"] < 1e-4
    learner = run(300, "algo.learning_starts=10", "algo.updates_per_step=0.1").learner
    assert learner.drain_metrics()["loss/delta_q_last"] > 1e-3


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_r2d2_resumes_bitwise(resume_differences, core):
    settings = [*SMALL, *SHORT, "algo.learning_starts=20", f"net.core.kind={core}", "algo.retrace=0.9"]
    assert resume_differences("r2d2-memory", ["env={id: toy/counting}", *settings], 300) == []

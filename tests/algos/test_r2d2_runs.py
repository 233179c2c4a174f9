"""R2D2 inside the system: what its windows hold, that nothing is left out, that it resumes and that it remembers."""

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
    """An inline system on the counting env, whose episodes have 1 to 7 steps."""
    return inline_runs.run("r2d2-memory", steps, "env={id: toy/counting}", *SMALL, *SHORT, *overrides)


@pytest.fixture(scope="module")
def untrained():
    """A system that has only acted: everything recorded is by the weights it still has."""
    return run(300, "algo.learning_starts=5000", "net.core.kind=lstm")


def test_every_step_is_trained_also_of_episodes_shorter_than_the_burn_in(untrained):
    steps = all_sequences(untrained)
    trained = untrained.learner.algorithm._trained(tree.to_torch(steps)).numpy()
    whole = {tuple(obs) for obs in steps.obs[:-1][steps.valid].astype(int).tolist()}
    learned_from = {tuple(obs) for obs in steps.obs[:-1][trained].astype(int).tolist()}
    lengths = {}
    for tag, episode, step in whole:
        lengths[tag, episode] = max(lengths.get((tag, episode), 0), step + 1)
    assert min(lengths.values()) <= 2  # below the burn-in
    assert learned_from == whole


def test_every_window_has_a_trained_step_and_a_priority(untrained):
    steps = all_sequences(untrained)
    algorithm = untrained.learner.algorithm
    assert algorithm._trained(tree.to_torch(steps)).any(0).all()
    assert (algorithm.priority(steps) > 0).all()


def test_the_carry_is_what_came_before_the_first_observation(untrained):
    steps = all_sequences(untrained)
    later = ~steps.first[0]
    assert later.any()
    for b in np.nonzero(later)[0]:
        tag, episode, step = (int(x) for x in steps.obs[0, b])
        reward = counting_reward(tag, episode, step - 1, int(steps.carry["action"][b]))
        assert steps.carry["rewards"]["extrinsic"][b] == reward
        assert steps.carry["state"]["h"][b].any()


def test_unrolling_from_the_stored_state_gives_the_q_values_that_were_acted_on(untrained):
    """Weights have not moved, so states, previous actions and rewards are aligned if and only if these agree."""
    steps = tree.to_torch(all_sequences(untrained))
    with torch.no_grad():
        q = unroll_burnt_in(untrained.learner.model, steps, burn_in=5)["extrinsic"]
    seen = torch.cat([steps.valid, steps.valid[-1:]])
    torch.testing.assert_close(q[seen], steps.extras["q"]["extrinsic"][seen], rtol=1e-4, atol=1e-5)


def test_replay_of_unmoved_weights_has_no_drift_and_of_others_has(untrained):
    learner = untrained.learner
    steps = tree.to_torch(all_sequences(untrained))
    batch = Batch(steps, torch.ones(steps.rows), torch.zeros(steps.rows), Progress(), torch.Generator())
    assert learner.algorithm.loss(learner.model, learner.model, batch).metrics()["delta_q_last"] < 1e-4
    learner = run(300, "algo.learning_starts=10", "algo.updates_per_step=0.1").learner
    assert learner.drain_metrics()["loss/delta_q_last"] > 1e-3


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_it_resumes_to_the_bit(resume_differences, core):
    settings = [*SMALL, *SHORT, "algo.learning_starts=20", f"net.core.kind={core}", "algo.retrace=0.9"]
    assert resume_differences("r2d2-memory", ["env={id: toy/counting}", *settings], 300) == []

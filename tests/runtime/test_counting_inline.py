"""Inline runs that count in updates, learn without a ratio, or act with older weights."""

import numpy as np
import pytest
import torch
from support.inline_runs import build, run

from starling import tree
from starling.state_io import pack, unpack

SMALL = ["algo.learning_starts=64", "algo.fragment=8", "algo.batch=8", "net.torso.hidden=[8]", "threads=1"]


def test_without_a_ratio_there_is_one_update_per_fragment():
    runtime = run("dqn-cartpole", 400, *SMALL, "algo.updates_per_step=null")
    fragments = (runtime.env_steps - 64) // 8
    assert abs(runtime.updates - fragments) <= 6  # resets are in fragments, but are no env steps
    assert runtime.learner.progress(runtime.env_steps).fraction == runtime.env_steps / 150_000


def acting_versions(runtime):
    """The policy versions that acted, in order, from the steps in replay."""
    (table,) = runtime.store.mixture.tables
    return np.unique(table.ring._arrays["policy_version"][: table.ring.used])


def test_actors_act_with_weights_that_they_fetch_every_so_many_updates():
    settings = [*SMALL, "algo.updates_per_step=0.5"]
    often, rarely = (run("dqn-cartpole", 400, *settings, f"fetch_every={n}") for n in (1, 20))
    assert often.updates > 100
    assert np.diff(acting_versions(often)).min() < 20
    assert np.diff(acting_versions(rarely)).min() >= 20
    held = rarely._acting_weights.model.state_dict()
    assert any(not torch.equal(held[name], value) for name, value in weights(rarely).items())


def weights(runtime):
    return {name: value.clone() for name, value in runtime.learner.model.state_dict().items()}


@pytest.mark.parametrize("fetch_every", [1, 20])
def test_exact_state_has_the_weights_that_act(fetch_every):
    settings = [
        *SMALL,
        f"fetch_every={fetch_every}",
        "checkpoint.exact=true",
        "stop.env_steps=null",
        "stop.updates=300",
    ]
    settings += ["algo.target_every=90 env steps", "algo.epsilon={start: 1, end: 0.1, steps: 100 updates}"]
    whole = run("dqn-cartpole", 300, *settings)
    state = unpack(pack(whole.save(with_tables=True)))
    again = build("dqn-cartpole", *settings)
    again.restore(state)
    if fetch_every > 1:
        pairs = [runtime._acting_weights.get_state() for runtime in (whole, again)]
        for name, value in tree.items(pairs[0]):
            assert torch.equal(value, dict(tree.items(pairs[1]))[name]), name
    for runtime in (whole, again):
        steps = runtime.run()
        for _ in range(150):
            next(steps)
    assert whole.updates == again.updates
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name

"""Running statistics compared with numpy over all data, and a network that normalizes exactly once."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from starling.config.parts import NetConfig, TorsoConfig
from starling.nets.build import HeadSpec, build_network
from starling.nets.normalizers import LIMIT, Moments, Normalized, ObservationNormalizer, RewardScale
from starling.types import EnvSpec

SPACE = spaces.Dict(
    vector=spaces.Box(-np.inf, np.inf, (3,), np.float32),
    pair=spaces.Tuple([spaces.Box(0, 1, (), np.float32), spaces.Discrete(4)]),
    image=spaces.Box(0, 255, (1, 8, 8), np.uint8),
)


def observations(lead, seed=0):
    random = torch.Generator().manual_seed(seed)
    return {
        "vector": 5.0 + 3.0 * torch.randn(*lead, 3, generator=random),
        "pair": (torch.rand(*lead, generator=random), torch.randint(4, lead, generator=random)),
        "image": torch.randint(256, (*lead, 1, 8, 8), generator=random).to(torch.uint8),
    }


def test_moments_over_batches_equal_those_of_all_valid_values():
    moments, seen = Moments((2,)), []
    assert moments.mean().tolist() == [0, 0]
    assert moments.std().tolist() == pytest.approx([1, 1])
    for seed in range(3):
        random = np.random.default_rng(seed)
        x, valid = random.normal([1000.0, -2.0], [0.5, 7.0], (6, 4, 2)).astype(np.float32), random.random((6, 4)) < 0.7
        moments.update(torch.from_numpy(x), torch.from_numpy(valid))
        seen.append(x[valid])
    everything = np.concatenate(seen).astype(np.float64)
    np.testing.assert_allclose(moments.mean(), everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.std(), everything.std(0), rtol=1e-5)


def test_moments_follow_buffers_that_were_overwritten():
    moments, other = Moments((2,)), Moments((2,))
    x = torch.tensor([[1.0, 4.0], [3.0, 4.0]])
    other.update(x, torch.ones(2, dtype=torch.bool))
    with torch.inference_mode():
        assert moments.mean().tolist() == [0, 0]
    for mine, theirs in zip(moments.buffers(), other.buffers(), strict=True):
        mine.numpy()[...] = theirs.numpy()  # as weights arrive from another process
    with torch.inference_mode():
        assert moments.mean().tolist() == [2, 4]
    # Statistics cached while acting can be used in training.
    scaled = (torch.ones(2, requires_grad=True) - moments.mean()) / moments.std()
    scaled.sum().backward()
    other.total += 2
    moments.load_state_dict(other.state_dict())
    assert moments.mean().tolist() == [3, 5]


def test_moments_of_two_learners_add_up():
    one, other, both = Moments(()), Moments(()), Moments(())
    x, valid = torch.randn(8, 2), torch.ones(8, dtype=torch.bool)
    one.update(x[:, 0], valid)
    other.update(x[:, 1], valid)
    both.update(x, torch.ones(8, 2, dtype=torch.bool))
    for name, buffer in both.named_buffers():
        torch.testing.assert_close(one.get_buffer(name) + other.get_buffer(name), buffer)


def test_only_float_vectors_are_normalized():
    normalizer, obs = ObservationNormalizer(SPACE), observations((50, 4))
    normalizer.update(obs, torch.ones(50, 4, dtype=torch.bool))
    seen = normalizer(obs)
    for leaf in (seen["vector"].flatten(0, 1), seen["pair"][0].flatten()):
        torch.testing.assert_close(leaf.mean(0), torch.zeros(leaf.shape[1:]), atol=1e-5, rtol=0)
        torch.testing.assert_close(leaf.std(0, correction=0), torch.ones(leaf.shape[1:]), atol=1e-4, rtol=0)
    assert seen["image"] is obs["image"]
    assert seen["pair"][1] is obs["pair"][1]
    far = normalizer({**obs, "vector": torch.full((1, 3), 1e9)})
    assert (far["vector"] == LIMIT).all()


def test_network_normalizes_observations_exactly_once():
    net = NetConfig(torso=TorsoConfig(hidden=[8], channels=[2], kernels=[3], strides=[2]))
    network = build_network(EnvSpec("x", SPACE, spaces.Discrete(2)), net, {"value": HeadSpec("value")}, normalize=True)
    network.normalizer.update(observations((50, 4), seed=1), torch.ones(50, 4, dtype=torch.bool))
    obs, first = observations((5,)), torch.zeros(5, dtype=torch.bool)
    raw, _ = network.step(obs, first, {})
    once, _ = network.step(Normalized(network.normalizer(obs)), first, {})
    twice, _ = network.step(network.normalizer(obs), first, {})
    assert torch.equal(raw["value"], once["value"])
    assert not torch.allclose(raw["value"], twice["value"])
    rows, _, _ = network.unroll(observations((3, 5)), first.expand(3, 5), None, {}, {})
    assert rows["value"].shape == (3, 5)
    assert any(name.startswith("normalizer.") for name in network.state_dict())


def slow_returns(r, first, valid, discount, before):
    """Discounted returns accumulated so far at every valid step, one step at a time."""
    found = []
    for row in range(r.shape[1]):
        running = before
        for t in range(len(r)):
            running = r[t, row] + discount * (0.0 if first[t, row] else running)
            if valid[t, row]:
                found.append(running)
    return np.array(found)


def test_rewards_are_divided_by_the_std_of_their_return():
    scale, seen, before = RewardScale(0.9), [], 0.0
    for seed in range(3):
        random = np.random.default_rng(seed)
        first = random.random((13, 4)) < 0.2
        valid = np.ones((12, 4), bool)
        valid[:-1] = ~first[1:-1]  # the step before an episode's first observation is a reset
        r = np.where(valid, random.normal(1.0, 2.0, (12, 4)), 0.0).astype(np.float32)
        scale.update(torch.from_numpy(r), torch.from_numpy(first), torch.from_numpy(valid))
        seen.append(slow_returns(r, first, valid, 0.9, before))
        before = np.concatenate(seen).mean()
    std = np.concatenate(seen).std()
    np.testing.assert_allclose(scale(torch.from_numpy(r)), np.clip(r / std, -LIMIT, LIMIT), rtol=1e-4)

"""Sources of mixed batches: invalid settings, recorded extras, distances compared with loops, and per-source means."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.policy_batches import env_spec, make_batch

from starling import tree
from starling.algos.impala.config import IMPALAConfig
from starling.algos.impala.sources import means_by_source
from starling.config.load import from_dict, load, to_dict
from starling.config.parts import CoreConfig, NetConfig, TorsoConfig
from starling.errors import UserError
from starling.launch.plan import RunPlan, layout_of, make_algorithm
from starling.launch.runtime import build_runtime
from starling.nets.states import EMBEDDED, StateFeatures

ELITE = "{kind: elite, share: 0.5, capacity: 200, distance: lp}"
QUEUE = "{kind: queue, share: 0.5}"


def impala_config(*sources, more=()):
    return load("impala-cartpole", [f"algo.sources=[{', '.join(sources)}]", *more])


@pytest.mark.parametrize(
    ("sources", "line"),
    [
        ([QUEUE, "{kind: uniform, share: 0.4}"], "the shares must sum to 1, not 0.9"),
        (["{kind: uniform, share: 1}"], "exactly one must be a queue"),
        ([QUEUE, QUEUE], "exactly one must be a queue"),
        ([QUEUE, "{kind: elite, share: 0.5, selection: farthest}"], "selection: must be 'nearest' or 'spread' or"),
        ([QUEUE, "{kind: elite, share: 0.5, distance: l2}"], "distance: must be 'lp' or 'cosine' or 'kl'"),
        ([QUEUE, "{kind: attentive, share: 0.5, distance: kl}"], "attentive compares states, which are not distrib"),
        ([QUEUE, "{kind: uniform, share: 0.5, lambda: 3}"], "lambda has no effect on a source of kind uniform"),
        (["{kind: queue, share: 1, capacity: 5}"], "capacity has no effect on a source of kind queue"),
    ],
)
def test_invalid_mixtures_are_one_line_errors(sources, line):
    with pytest.raises(UserError, match=line) as refused:
        impala_config(*sources)
    assert "\n" not in str(refused.value)


def test_capacity_below_the_number_of_candidates_is_rejected():
    with pytest.raises(UserError, match=r"'elite': capacity 20 is below the 24 candidates \(6 x 4\)"):
        RunPlan.from_config(impala_config(QUEUE, "{kind: elite, share: 0.5, capacity: 20}"))


def test_cloning_without_replay_is_rejected():
    with pytest.raises(UserError, match="clear needs replayed sequences, but there are none"):
        load("impala-cartpole", ["algo.clear={}"])


def test_skipping_states_of_a_recurrent_network_is_rejected():
    source = "{kind: elite, share: 0.5, every: 4}"
    with pytest.raises(UserError, match="every above 1"):
        RunPlan.from_config(impala_config(QUEUE, source, more=["net.core={kind: lstm, size: 8}", "net.shared=true"]))


def test_sources_round_trip_through_a_dict():
    config = impala_config(QUEUE, ELITE)
    assert from_dict(to_dict(config)) == config


def extras_of(*sources, more=()):
    run_plan = RunPlan.from_config(impala_config(*sources, more=more))
    return layout_of(run_plan, run_plan.algorithm.build(run_plan.env, run_plan.streams)).extras


def test_only_extras_needed_by_a_source_or_cloning_are_recorded():
    uniform = "{kind: uniform, share: 0.5}"
    assert set(extras_of(QUEUE, uniform)) == {"behavior"}
    assert set(extras_of(QUEUE, "{kind: elite, share: 0.5, distance: kl}")) == {"behavior"}
    assert set(extras_of(QUEUE, "{kind: attentive, share: 0.5}")) == {"behavior"}
    assert set(extras_of(QUEUE, ELITE)) == {"behavior", "features"}
    assert set(extras_of(QUEUE, uniform, more=["algo.clear={}"])) == {"behavior", "values"}


def make(core="none", **source):
    torch.manual_seed(3)
    net = NetConfig(torso=TorsoConfig(hidden=[16]), core=CoreConfig(kind=core, size=8))
    sources = [{"kind": "queue", "share": 0.5}, {"share": 0.5, **source}]
    algorithm = make_algorithm(IMPALAConfig(name="impala", sources=sources), net)
    return algorithm, algorithm.build(env_spec(), algorithm.streams())


def recorded(shape, random):
    return {
        "behavior": {"logits": torch.randn(*shape, 3, generator=random)},
        "features": torch.randn(*shape, 16, generator=random),
    }


def features_and_policies(model, steps):
    """Features and policies of every state, one at a time, with the carry passed on explicitly."""
    carry, features, policies = dict(steps.carry), [], []
    for t in range(steps.length + 1):
        x, state = model.encode(steps.obs[t], steps.first[t], carry)
        features.append(x)
        policies.append(model.decode(x)["policy"])
        carry = {"state": state}
    return torch.stack(features).detach(), policies


def slow_elite(features, policies, steps, distance, every):
    result = []
    for b in range(steps.batch_size):
        each = []
        for t in range(0, steps.length, every):
            if not steps.valid[t, b]:
                continue
            current_features, recorded_features = features[t, b].double(), steps.extras["features"][t, b].double()
            if distance == "lp":
                each.append(((current_features - recorded_features) ** 2).sum().sqrt().item())
            elif distance == "cosine":
                each.append(
                    1
                    - (current_features @ recorded_features / current_features.norm() / recorded_features.norm()).item()
                )
            else:
                mu = steps.extras["behavior"]["logits"][t, b].softmax(-1)
                pi = policies[t].logits[b].detach().softmax(-1)
                each.append((mu * (mu / pi).log()).sum().item())
        result.append(np.mean(each))
    return result


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("distance", ["lp", "cosine", "kl"])
def test_elite_distances_match_a_loop(distance, every):
    algorithm, model = make(kind="elite", distance=distance, every=every)
    steps = make_batch(model, recorded).trajectory
    scores = algorithm.score(model, 1, steps, steps)
    np.testing.assert_allclose(
        scores, slow_elite(*features_and_policies(model, steps), steps, distance, every), rtol=1e-4
    )


def test_elite_distances_of_a_recurrent_network_use_its_state():
    algorithm, model = make("lstm", kind="elite", distance="lp")
    steps = make_batch(model, recorded).trajectory
    steps = replace(steps, extras={**steps.extras, "features": steps.extras["features"][..., :8]})
    scores = algorithm.score(model, 1, steps, steps)
    np.testing.assert_allclose(scores, slow_elite(*features_and_policies(model, steps), steps, "lp", 1), rtol=1e-4)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("distance", ["lp", "cosine", "kl"])
def test_distance_is_0_while_the_network_is_unchanged(core, distance):
    """Nothing is learned, so encoding again gives the recorded features if states, resets, and features are aligned."""
    source = f"{{kind: elite, share: 0.5, capacity: 24, distance: {distance}}}"
    settings = ["env={id: toy/counting, num: 4}", f"net.core={{kind: {core}, size: 8}}", "net.shared=true"]
    settings += ["algo.unroll=7", "algo.optimizer.args.lr=0", "net.inputs=[action, reward]"]
    runtime = build_runtime(RunPlan.from_config(impala_config(QUEUE, source, more=settings)))
    for _ in runtime.run():
        if runtime.env_steps > 400:
            break
    steps = tree.to_torch(runtime.store.mixture.tables[1].draw_candidates(4, 0.0).trajectory)
    with torch.no_grad():
        scores = runtime.learner.algorithm.score(runtime.learner.model, 1, steps, steps)
    assert len(scores) == 24
    np.testing.assert_allclose(scores, 0.0, atol=1e-4)


@pytest.mark.parametrize("distance", ["lp", "cosine"])
@pytest.mark.parametrize("features", ["state", "network"])
def test_attentive_distances_match_a_loop(features, distance):
    algorithm, model = make(kind="attentive", distance=distance, features=features)
    steps, recent = (make_batch(model, recorded, seed=seed).trajectory for seed in (0, 1))
    x, current_features = (
        features_and_policies(model, part)[0] if features == "network" else part.obs for part in (steps, recent)
    )
    want = []
    for b in range(steps.batch_size):
        each = []
        for t in range(steps.length):
            pairs = [(x[t, b], current) for current in current_features[-1]]
            if steps.valid[t, b] and distance == "lp":
                each.append(min((a - c).norm().item() for a, c in pairs))
            elif steps.valid[t, b]:
                each.append(min(1 - (a @ c / a.norm() / c.norm()).item() for a, c in pairs))
        want.append(np.mean(each))
    np.testing.assert_allclose(algorithm.score(model, 1, steps, recent), want, rtol=1e-4, atol=1e-6)


def test_images_are_compared_in_a_fixed_random_embedding():
    image = spaces.Box(0, 255, (3, 12, 12), np.uint8)
    one, other = StateFeatures(image), StateFeatures(image)
    x = torch.randint(0, 255, (5, 2, 3, 12, 12), dtype=torch.uint8)
    y = one(x, torch.Size((5, 2)))
    assert y.shape == (5, 2, EMBEDDED)
    assert torch.equal(y, other(x, torch.Size((5, 2))))
    # A random projection keeps distances up to some tens of percent.
    flat = x.float().flatten(2) / 255
    torch.testing.assert_close((y[0] - y[1]).norm(dim=-1), (flat[0] - flat[1]).norm(dim=-1), rtol=0.4, atol=0)


def test_means_of_a_source_use_only_its_rows():
    x, source = torch.arange(8.0).view(2, 4), torch.tensor([0, 1, 1, 0])
    valid = torch.tensor([[True, True, False, True], [True, True, True, False]])
    means = means_by_source({"x": x, "y": 2 * x}, valid, source, ["queue", "elite", "unused"])
    assert means["queue/x"].item() == pytest.approx((0 + 3 + 4) / 3)
    assert means["elite/x"].item() == pytest.approx((1 + 5 + 6) / 3)
    assert means["elite/y"].item() == pytest.approx(2 * (1 + 5 + 6) / 3)
    assert means["unused/x"].item() == 0

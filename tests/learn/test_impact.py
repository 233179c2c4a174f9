"""IMPACT's clipping around the target policy makes learning from reused, stale batches stable."""

SETTINGS = [
    *["env={id: support.delayed_actors:Corridor, num: 8}", "net.torso.hidden=[]", "stop.env_steps=6000"],
    *["algo.unroll=8", "algo.batch=4", "algo.discount=0.95", "algo.trace_lambda=1", "algo.entropy_coef=0"],
    *["algo.buffer=8", "algo.max_times_sampled=8", "algo.target_every=16"],
    "algo.optimizer={name: SGD, args: {lr: 0.5}, clip_norm: 1000}",
]


def test_only_a_clipped_ratio_learns_from_batches_used_eight_times(trial):
    """The corridor needs a random policy: the best return is -11.6 per episode, that of a deterministic policy -60.

    Eight batches take turns, each used eight times, so that they are up to 64 updates old. Without the clip the same
    advantages push the policy until it is deterministic, and no reward leads back from there.
    """
    clipped = trial("clip=0.3", "impact-cartpole", SETTINGS)
    without = trial("no clip", "impact-cartpole", [*SETTINGS, "algo.clip={start: 1000, end: 1000, fraction: 1.0}"])
    assert clipped > -25
    assert without < -50

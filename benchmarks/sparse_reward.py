"""Value of curiosity with sparse rewards: MinAtar Freeway, whose only reward is for crossing the whole road.

PPO with each kind of curiosity and without, five seeds each. It takes hours and can be interrupted at any time; see
curves.py.

    python benchmarks/sparse_reward.py [--seeds 5] [--env-steps 300000] [--only rnd] [--draw-only] [--json]
"""

from __future__ import annotations

from curves import Study, main

FREEWAY = ["env.id=MinAtar/Freeway-v1", "algo.optimizer.schedule=null", "algo.optimizer.args.lr=0.0005"]
TORSO = "torso: {kind: cnn, channels: [16], kernels: [3], strides: [1], hidden: [64]}"
VARIANTS: dict[str, tuple[str, list[str]]] = {
    name: ("ppo-minatar-breakout", [*FREEWAY, f"curiosity=[{', '.join(streams)}]"])
    for name, streams in {
        "none": [],
        "rnd": [f"{{kind: rnd, weight: 0.5, {TORSO}}}"],
        "icm": [f"{{kind: icm, weight: 0.5, {TORSO}}}"],
        "episodic": [f"{{kind: episodic, weight: 0.5, capacity: 2500, {TORSO}}}"],
        "rnd and episodic": [
            f"{{kind: rnd, weight: 0.25, {TORSO}}}",
            f"{{kind: episodic, weight: 0.25, capacity: 2500, {TORSO}}}",
        ],
    }.items()
}

if __name__ == "__main__":
    main(Study("sparse_reward", "MinAtar Freeway", __doc__, VARIANTS))

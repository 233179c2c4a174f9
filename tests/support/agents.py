"""Small agents of every algorithm that learn a toy problem within a few thousand steps."""

SMALL = ["env.id=toy/identity", "env.num=8", "net.torso.activation=tanh", "net.torso.hidden=[32]", "stop.return=null"]
LSTM = ["net.core={kind: lstm, size: 16}", "net.shared=true"]
DQN = ["algo.learning_starts=200", "algo.fragment=4", "algo.updates_per_step=0.25", "algo.optimizer.args.lr=0.003"]
PPO = ["algo.rollout=32", "algo.epochs=6", "algo.minibatches=4", "algo.optimizer.args.lr=0.005", "algo.discount=0.5"]
PQN = ["algo.rollout=32", "algo.minibatches=8", "algo.optimizer.args.lr=0.005", "algo.discount=0.5"]
IMPALA = ["algo.batch=4", "algo.unroll=16", "algo.optimizer.args.lr=0.01", "algo.discount=0.5"]
MIXED = [*IMPALA, "algo.batch=8"]  # half of it new
RANKED = "{kind: elite, share: 0.25, capacity: 60, selection: grouped, contest: 5}"
IMPACT = [
    "algo.batch=4",
    "algo.unroll=16",
    "algo.optimizer.args.lr=0.01",
    "algo.discount=0.5",
    "algo.entropy_coef=0.01",
]
RND = "{kind: rnd, weight: 0.05, torso: {hidden: [8]}}"
ICM = "{kind: icm, weight: 0.05, hidden: 8, torso: {hidden: [8]}}"
EPISODIC = "{kind: episodic, weight: 0.05, features: 4, capacity: 16, neighbours: 3, hidden: 8, torso: {hidden: [8]}}"
R2D2 = [
    *["env.args={}", "algo.burn_in=4", "algo.unroll=8", "algo.period=4", "algo.fragment=4", "algo.learning_starts=100"],
    *["algo.updates_per_step=0.125", "algo.optimizer.args.lr=0.003", "algo.discount=0.5", "algo.epsilon=0.1"],
]
NGU = [
    *["algo.name=ngu", "algo.policies=2", "algo.novelty=0.01", "algo.min_discount=0.4", "algo.meta={}"],
    *["algo.lifelong={kind: rnd, torso: {hidden: [8]}}", "algo.target_every=50"],
    "algo.episodic={kind: episodic, features: 4, capacity: 16, neighbours: 3, hidden: 8, torso: {hidden: [8]}}",
]
SAC = [
    *["algo.learning_starts=256", "algo.batch=64", "algo.fragment=4", "algo.updates_per_step=0.25", "algo.tau=0.05"],
    *["algo.discount=0.5", "algo.actor_optimizer.args.lr=0.003", "algo.critic_optimizer.args.lr=0.003"],
    *["algo.temperature=0.1", "algo.temperature_optimizer.args.lr=0.01"],
]
GAUSSIAN = ["env.id=toy/match", "algo.policy=gaussian", "algo.log_std=-1", "algo.normalize_observations=true"]

AGENTS = {
    "apex": ("dqn-cartpole", [*DQN, "algo.name=apex"]),
    "dqn": ("dqn-cartpole", DQN),
    "dqn prioritized": ("dqn-cartpole", [*DQN, "algo.prioritized.alpha=0.6", "algo.n_step=3", "algo.dueling=true"]),
    "dqn curious": ("dqn-cartpole", [*DQN, f"curiosity=[{EPISODIC}]"]),
    "ngu": ("r2d2-memory", [*R2D2, *LSTM, *NGU]),
    "ppo": ("ppo-cartpole", PPO),
    "ppo curious": ("ppo-cartpole", [*PPO, f"curiosity=[{RND}, {ICM}]"]),
    "ppo lstm": ("ppo-cartpole", [*PPO, *LSTM]),
    "ppo asynchronous": ("ppo-cartpole", [*PPO, "algo.max_lag=1"]),
    "impala": ("impala-cartpole", IMPALA),
    "ppo gaussian": ("ppo-cartpole", [*PPO, *GAUSSIAN, "algo.normalize_rewards=true"]),
    "sac": ("sac-pendulum", [*SAC, "env.id=toy/match", "algo.target_entropy=-4"]),
    "impala clear": ("impala-clear-cartpole", MIXED),
    "impala attentive": ("impala-attentive-cartpole", MIXED),
    "impala elite lstm": (
        "impala-elite-cartpole",
        [*MIXED, *LSTM, f"algo.sources=[{{kind: queue, share: 0.5}}, {{kind: prioritized, share: 0.25}}, {RANKED}]"],
    ),
    "impact": ("impact-cartpole", IMPACT),
    "pqn": ("pqn-cartpole", PQN),
    "r2d2": ("r2d2-memory", [*R2D2, *LSTM]),
}
"""Of every algorithm: a preset and what makes it solve a toy within a few thousand steps."""

VARIANTS = {
    "impala lstm": ("impala-cartpole", [*IMPALA, *LSTM]),
    "sac discrete": ("sac-pendulum", [*SAC, "algo.target_entropy=0.2"]),
    "sac prioritized": ("sac-pendulum", [*SAC, "env.id=toy/match", "algo.n_step=3", "algo.prioritized.alpha=0.6"]),
    "impala laser": ("impala-laser-cartpole", [*IMPALA, "algo.batch=32"]),
    "r2d2 retrace": ("r2d2-memory", [*R2D2, "algo.retrace=0.95", "net.core={kind: gru, size: 16}"]),
}
"""Agents with the data flow of another one: they differ only in loss or network, which the runtimes do not see."""

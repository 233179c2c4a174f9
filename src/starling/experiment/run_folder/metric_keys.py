"""Every key that a row of metrics can have, with its unit, when it appears, and what it means.

`tools/metrics_reference.py` formats the table as docs/metrics.md; `starling metrics RUN --keys` prints the part that a
run uses. Does not import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Unit:
    """A unit, and the values that it allows: integers if `whole`, from `low` to `high`."""

    name: str
    whole: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Metric:
    """One entry; capitalized parts of its key are placeholders, see `PLACEHOLDERS`."""

    key: str
    unit: Unit
    when: str
    meaning: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        def pattern(part: str) -> str:
            return PLACEHOLDERS[part][0] if part in PLACEHOLDERS else re.escape(part)

        return re.compile("/".join(map(pattern, self.key.split("/"))))

    @property
    def has_placeholder(self) -> bool:
        return not PLACEHOLDERS.keys().isdisjoint(self.key.split("/"))

    def matches(self, key: str) -> bool:
        return self._pattern.fullmatch(key) is not None


@dataclass(frozen=True)
class Section:
    """The entries of one prefix, and what they have in common."""

    title: str
    about: str
    metrics: tuple[Metric, ...]


PLACEHOLDERS = {
    "TABLE": (
        r"[^/]+",
        "a table: `replay` (dqn, apex, r2d2, ngu, sac), `rollouts` (ppo, pqn), `unrolls` (impala, impact), or a SOURCE",
    ),
    "SOURCE": (
        r"(queue|uniform|prioritized|attentive|elite)(-\d+)?",
        "an entry of `algo.sources`: its kind, numbered from the second of a kind on (`uniform-2`)",
    ),
    "OPTIMIZER": (
        r"[^/]+",
        "`q` (dqn, apex, r2d2, ngu, pqn), `ppo`, `impala`, `impact`, `critic`, `actor`, `temperature` (sac),"
        " `lifelong`, `embedding` (ngu), `extrinsic`, `novelty` (ngu with `algo.separate_networks`, instead of `q`), a"
        " network of `nets` with an optimizer of its own, or a STREAM",
    ),
    "STREAM": (r"[^/]+", "an entry of `curiosity`: its `name`, or else its kind; with ngu `novelty`"),
    "N": (r"\d+", "the index of a policy, from 0"),
    "NAME": (r"[^/]+", "an entry of `eval.metrics`"),
    "KIND": (
        r"(actor|env|inference|evaluator|learner|node|shard)",
        "a kind of worker: `actor`, `env` (an env loop with central inference), `inference`, `evaluator`, `learner`;"
        " over Ray also `node` and `shard`",
    ),
}
"""Placeholders: a pattern of the names that each stands for, and these in words."""

TEXT = Unit("text")
STEPS, MEAN_STEPS = Unit("env steps", whole=True, low=0), Unit("env steps, mean", low=0)
UPDATES, MEAN_UPDATES = Unit("updates", whole=True, low=0), Unit("updates, mean", low=0)
EPISODES = Unit("episodes", whole=True, low=0)
ITEMS, CELLS = Unit("items", whole=True, low=0), Unit("cells", whole=True, low=0)
COUNT, INDEX = Unit("count", whole=True, low=0), Unit("index", whole=True, low=0)
FLAG = Unit("0 or 1", whole=True, low=0, high=1)
SHARE, EXPLAINED = Unit("share, 0 to 1", low=0, high=1), Unit("share, at most 1", high=1)
REWARD, STD = Unit("reward"), Unit("reward", low=0)
LOSS, SIGNED_LOSS = Unit("loss", low=0), Unit("loss")
NATS, KL = Unit("nats"), Unit("nats, at least 0", low=0)
RATIO, NORM, RATE = Unit("ratio", low=0), Unit("norm", low=0), Unit("learning rate", low=0)
FACTOR = Unit("factor", low=0)
MEAN_ENVS, UNIT_OF_ENV = Unit("envs, mean", low=0), Unit("the env's")
SECONDS, MILLISECONDS = Unit("seconds", low=0), Unit("milliseconds", low=0)
STEPS_PER_S, FRAMES_PER_S = Unit("env steps per second", low=0), Unit("frames per second", low=0)
UPDATES_PER_S = Unit("updates per second", low=0)

ALWAYS, AFTER_UPDATE = "every row", "rows with an update"
WORKERS, CENTRAL = "processes, ray", "processes, ray with `inference=central`"
EVALUATION, TRIALS, EVALUATOR = "rows of an evaluation", "ngu with `algo.meta`", "processes, ray with `eval.every`"
SEQUENCES, SEPARATE = "r2d2, ngu with `algo.delta_q`", "ngu with `algo.separate_networks`"
POLICIES, SOURCES, RANKED = "ppo, impala, impact", "impala with `algo.sources`", "attentive, elite sources"
CLEAR, LASER = "impala with `algo.clear`", "impala with `algo.laser`"

PROGRESS = Section("Progress and score", "Of training, with exploration.", (
    Metric("env_steps", STEPS, ALWAYS,
           "Env steps of the run so far, over all envs. Resets do not count; an action that is repeated over several"
           " frames is one step. With worker processes: steps that have arrived in the tables"),
    Metric("updates", UPDATES, ALWAYS, "Batches learned from so far, each with all its epochs and minibatches"),
    Metric("episodes", EPISODES, ALWAYS, "Episodes ended so far; whole games if losing a life ends an episode"),
    Metric("return", REWARD, ALWAYS,
           "Mean return of the last 100 episodes, fewer at first: the undiscounted sum of rewards before"
           " `env.reward_clip`; null before the first"),
    Metric("episode_length", MEAN_STEPS, ALWAYS, "Mean length of these episodes; null before the first"),
    Metric("episode_longest", STEPS, ALWAYS, "Length of the longest of them; null before the first"),
    Metric("warnings", TEXT, "rows with a problem",
           "Problems of training that the last 10 rows show, and settings to change"),
))  # fmt: skip

EVAL = Section("eval/", "Evaluations during training (`eval.every`), without exploration.", (
    Metric("eval/return", REWARD, EVALUATION, "Mean return of `eval.episodes` episodes, like `return`"),
    Metric("eval/return_std", STD, EVALUATION, "Standard deviation of these returns"),
    Metric("eval/length", MEAN_STEPS, EVALUATION, "Mean length of these episodes"),
    Metric("eval/env_steps", STEPS, EVALUATION,
           "Env steps when the evaluated weights were published; with worker processes, before the row's `env_steps`"),
    Metric("eval/NAME", UNIT_OF_ENV, "`eval.metrics`",
           "Mean of the number NAME in the env's info at the end of these episodes"),
    Metric("eval/arm", INDEX, TRIALS, "Policy that was scored: the best in the trials"),
    Metric("eval/arm/N/return", REWARD, TRIALS,
           "Mean return of policy N in the last `algo.meta.window` trials of all policies"),
    Metric("eval/arm/N/share", SHARE, TRIALS, "Share of these trials that policy N played"),
))  # fmt: skip

EXPLORE = Section("explore/", "Exploration in training at the row's `env_steps`.", (
    Metric("explore/epsilon", SHARE, "dqn, apex, r2d2, ngu, pqn",
           "Probability of a random action, a mean over envs (over arms with `algo.epsilon_bandit`)"),
    Metric("explore/epsilon_min", SHARE, "apex, r2d2, ngu, dqn with `algo.epsilon_bandit`",
           "Its minimum, if it differs"),
    Metric("explore/epsilon_max", SHARE, "apex, r2d2, ngu, dqn with `algo.epsilon_bandit`",
           "Its maximum, if it differs"),
))  # fmt: skip

LOSSES = Section(
    "loss/",
    "Losses and other measurements of a batch: of the last minibatch of each update, averaged over the updates since"
    " the last row. A row without an update has none. With several reward streams, losses are summed, and values and"
    " advantages are summed by weight. Your own algorithm adds `loss/NAME` for each of its `Loss.metrics`, and"
    " `explore/NAME` for each value that its `exploration_metrics` returns.", (
    Metric("loss/q", LOSS, "dqn, apex, r2d2, pqn, ngu with one network",
           "Huber loss of the TD errors (squared for pqn with `algo.huber=null`), with importance weights; r2d2, ngu:"
           " summed over the steps of a sequence"),
    Metric("loss/q_values", REWARD, "dqn, apex, r2d2, ngu, pqn, sac",
           "Mean Q value of the actions in the batch (r2d2, ngu: rescaled, with `algo.rescale`; sac: of both critics)"),
    Metric("loss/delta_q_first", RATIO, SEQUENCES,
           "Effect of stale recurrent states (Delta-Q of R2D2) at the first step after burn-in: change of Q, relative"
           " to the largest Q"),
    Metric("loss/delta_q_last", RATIO, SEQUENCES, "The same at the last step of a sequence"),
    Metric("loss/extrinsic", LOSS, SEPARATE, "Like `loss/q`, of the network of the env's reward"),
    Metric("loss/novelty", LOSS, SEPARATE, "Like `loss/q`, of the network of novelty"),
    Metric("loss/lifelong", LOSS, "ngu", "Prediction error of RND (lifelong novelty)"),
    Metric("loss/embedding", LOSS, "ngu", "Cross-entropy of the inverse model (episodic novelty)"),
    Metric("loss/critic", LOSS, "sac", "Half the squared TD error, summed over both critics, with importance weights"),
    Metric("loss/actor", SIGNED_LOSS, "sac", "Policy loss: the negative soft value"),
    Metric("loss/temperature", RATIO, "sac", "The temperature alpha itself, not its loss"),
    Metric("loss/policy", SIGNED_LOSS, POLICIES,
           "Policy loss per step: the negative clipped surrogate; impala: -log pi(a) times the V-trace advantage"),
    Metric("loss/value", LOSS, POLICIES, "Value loss per step: half the squared error"),
    Metric("loss/entropy", NATS, "ppo, impala, impact, sac",
           "Mean entropy of the policy; below 0 for a narrow continuous policy"),
    Metric("loss/kl", KL, "ppo", "Estimate of KL(policy that acted || current policy)"),
    Metric("loss/clipped", SHARE, POLICIES,
           "Share of importance ratios that are clipped: outside 1 +- `algo.clip`; impala: above `algo.clip_rho`"),
    Metric("loss/off_policy", SHARE, "impala, impact, ppo with `algo.max_lag`",
           "Total variation distance between the policy that acted and the current one (ppo: before the update)"),
    Metric("loss/rho", RATIO, "impala, impact",
           "Mean importance ratio before clipping, current policy / policy that acted; impact: target policy / policy"
           " that acted"),
    Metric("loss/explained_variance", EXPLAINED, "impala",
           "Share of the variance of the value targets that the values explain: at best 1, and 0 for constant values"),
    Metric("loss/policy_clone", KL, CLEAR,
           "KL(recorded policy || current policy) of replayed steps; new steps are in the mean with 0"),
    Metric("loss/value_clone", LOSS, CLEAR,
           "Squared difference to the recorded value of replayed steps; new steps are in the mean with 0"),
    Metric("loss/relevant", SHARE, LASER, "Share of steps that are learned from: their policy is close enough"),
    Metric("loss/curiosity/STREAM", SIGNED_LOSS, "`curiosity`", "Loss of the networks of this intrinsic reward"),
    Metric("loss/reward/STREAM", REWARD, "`curiosity`, ngu",
           "Mean intrinsic reward per step, divided by the std of its discounted sum; ngu: not divided"),
))  # fmt: skip

LOSSES_OF_SOURCES = Section(
    "loss/SOURCE/",
    "The same for the rows of a batch that come from one source, 0 if there are none; of `queue` if `algo.laser` is set"
    " and `algo.sources` is not.", (
    Metric("loss/SOURCE/policy", SIGNED_LOSS, SOURCES, "Like `loss/policy`"),
    Metric("loss/SOURCE/value", LOSS, SOURCES, "Like `loss/value`"),
    Metric("loss/SOURCE/entropy", NATS, SOURCES, "Like `loss/entropy`"),
    Metric("loss/SOURCE/rho", RATIO, SOURCES, "Like `loss/rho`"),
    Metric("loss/SOURCE/clipped", SHARE, SOURCES, "Like `loss/clipped`"),
    Metric("loss/SOURCE/off_policy", SHARE, SOURCES, "Like `loss/off_policy`"),
    Metric("loss/SOURCE/policy_clone", KL, CLEAR, "Like `loss/policy_clone`; 0 for the queue"),
    Metric("loss/SOURCE/value_clone", LOSS, CLEAR, "Like `loss/value_clone`; 0 for the queue"),
    Metric("loss/SOURCE/relevant", SHARE, LASER, "Like `loss/relevant`"),
    Metric("loss/SOURCE/lag", MEAN_UPDATES, SOURCES, "Like `learner/lag`, of every update"),
))  # fmt: skip

LEARNER = Section(
    "learner/",
    "With several learners, `learner/` and `loss/` are those of the first one, with its part of the batch. A row lacks"
    " them if it did not answer within two seconds.", (
    Metric("learner/lag", MEAN_UPDATES, AFTER_UPDATE,
           "Age of experience when it is learned from: updates since the weights that acted, those of its oldest step"
           " in a sequence. A mean over the batch, of every 8th update"),
    Metric("learner/lag_steps", MEAN_STEPS, AFTER_UPDATE, "The same in env steps, over all envs"),
    Metric("learner/skipped", COUNT, ALWAYS, "Optimizer steps skipped so far because a gradient was not finite"),
    Metric("learner/loss_scale", FACTOR, "`precision=float16`",
           "Factor of the losses, halved when a gradient overflows and doubled when none did for long"),
    Metric("learner/compiled", FLAG, "`compile`", "1 if the loss runs compiled, 0 if torch cannot compile it"),
    Metric("learner/OPTIMIZER/gradient_norm", NORM, AFTER_UPDATE,
           "Norm of the gradient before clipping, averaged over the optimizer steps since the last row"),
    Metric("learner/OPTIMIZER/learning_rate", RATE, ALWAYS, "Current learning rate"),
))  # fmt: skip

STORE = Section(
    "store/TABLE/",
    "The tables, summed over learners and shards. Counts are of the whole run, or with `checkpoint.replay=false` since"
    " it was started or resumed.", (
    Metric("store/TABLE/size", ITEMS, ALWAYS,
           "Items that can be sampled: sequences of a ring (`replay`), or fragments of one env"),
    Metric("store/TABLE/cells", CELLS, "ring", "Cells in use: one per env step and per final observation"),
    Metric("store/TABLE/capacity", CELLS, "ring", "Cells in total"),
    Metric("store/TABLE/inserted", ITEMS, ALWAYS, "Items added"),
    Metric("store/TABLE/overwritten", ITEMS, ALWAYS, "Items of a ring whose cells were reused"),
    Metric("store/TABLE/full", ITEMS, ALWAYS, "Oldest items of other tables removed to make room"),
    Metric("store/TABLE/evicted", ITEMS, ALWAYS, "Items removed by elite insertion (`contest`) or by `replay_from`"),
    Metric("store/TABLE/stale", COUNT, ALWAYS, "Priorities and distances that came after their item was removed"),
    Metric("store/TABLE/duplicate", COUNT, ALWAYS, "Fragments that arrived again and were ignored"),
    Metric("store/TABLE/broken", COUNT, ALWAYS,
           "Fragments of one env in a ring that did not continue the one before, as after a restart of its actor"),
))  # fmt: skip

LEDGER = Section("ledger/", "Env steps since the run was started or resumed: produced = inserted + open + lost.", (
    Metric("ledger/produced", STEPS, WORKERS, "Env steps taken"),
    Metric("ledger/inserted", STEPS, WORKERS, "Env steps that have arrived in the tables"),
    Metric("ledger/open", STEPS, WORKERS, "Env steps in fragments that are being recorded or on their way"),
    Metric("ledger/lost", STEPS, WORKERS, "Env steps lost with a worker"),
))  # fmt: skip

FAILURES = Section("envs/, faults/, ray/", "Failures, and the cluster.", (
    Metric("envs/dropped", EPISODES, ALWAYS,
           "Episodes dropped because the env returned NaN or inf; with worker processes, since the last start"),
    Metric("faults/KIND", COUNT, "processes, ray, after a crash",
           "Crashes and hangs of this kind of worker since the run was started or resumed"),
    Metric("ray/nodes", COUNT, "ray", "Nodes of the cluster that are alive"),
    Metric("ray/weights_put", COUNT, "ray", "Versions of the weights put into the object store"),
))  # fmt: skip

TIME = Section(
    "time/",
    "Speed, and how time is spent; these values depend on the machine. Shares are of the time since the last row, and"
    " means over all workers of a kind; the first row after a start has none.", (
    Metric("time/seconds", SECONDS, ALWAYS, "Time since the run was started or resumed"),
    Metric("time/steps_per_s", STEPS_PER_S, ALWAYS, "Mean speed since then, with evaluations and checkpoints"),
    Metric("time/frames_per_s", FRAMES_PER_S, ALWAYS, "The same in frames: steps times the env's frame skip"),
    Metric("time/updates_per_s", UPDATES_PER_S, ALWAYS, "Mean updates per second since then"),
    Metric("time/bottleneck", TEXT, "after the first update", "What limits the speed, from the last 10 rows"),
    Metric("time/checkpoint_stall", SECONDS, "after a checkpoint", "Pause of training for the last checkpoint"),
    Metric("time/checkpoint", SECONDS, "after a checkpoint", "Time until the last complete checkpoint was on disk"),
    Metric("time/checkpoints_lost", COUNT, "ray, after the loss of a node",
           "Checkpoints given up because a part of the replay was lost while they were written"),
    Metric("time/learner/busy", SHARE, ALWAYS,
           "The learner learns, all-reduce excluded; one learner with worker processes: also the main loop of the run"),
    Metric("time/learner/wait_in", SHARE, WORKERS, "It waits for a batch"),
    Metric("time/learner/reduction", SHARE, "`learners` above 1", "All-reduce, and waiting for the other learners"),
    Metric("time/actors/busy", SHARE, ALWAYS,
           "Actors step envs and, with local inference, choose actions; inline: everything but learning"),
    Metric("time/actors/wait_in", SHARE, WORKERS, "They wait for actions (`inference=central`)"),
    Metric("time/actors/wait_out", SHARE, WORKERS, "They wait for a credit: the learner is behind (`inference=local`)"),
    Metric("time/inference/busy", SHARE, CENTRAL, "The inference server chooses actions"),
    Metric("time/inference/wait_in", SHARE, CENTRAL, "It waits for observations"),
    Metric("time/inference/wait_out", SHARE, CENTRAL, "It waits for a credit: the learner is behind"),
    Metric("time/inference/batch", MEAN_ENVS, CENTRAL, "Envs per forward pass, since the server was started"),
    Metric("time/inference/wait_ms", MILLISECONDS, CENTRAL,
           "Mean wait of the first observation of a forward pass, since the server was started"),
    Metric("time/inference/budget_ms", MILLISECONDS, CENTRAL,
           "Longest wait that the server allows now: `batching.wait_ms`, or as measured"),
    Metric("time/hub/busy", SHARE, WORKERS, "The hub copies fragments and prepares batches"),
    Metric("time/evaluator/busy", SHARE, EVALUATOR, "The evaluator plays"),
    Metric("time/evaluator/wait_in", SHARE, EVALUATOR, "It waits for the next evaluation"),
    Metric("time/evaluator/wait_out", SHARE, EVALUATOR, "Always 0"),
    Metric("time/scoring/busy", SHARE, RANKED, "Candidates are scored"),
    Metric("time/scoring/ms", MILLISECONDS, RANKED, "Mean time to score the candidates of a batch"),
))  # fmt: skip

SECTIONS = (
    PROGRESS, EVAL, EXPLORE, LOSSES, LOSSES_OF_SOURCES, LEARNER, STORE, LEDGER, FAILURES, TIME,
)  # fmt: skip
"""The reference, by prefix."""
METRICS = tuple(metric for section in SECTIONS for metric in section.metrics)
_EXACT = {metric.key: metric for metric in METRICS if not metric.has_placeholder}
_PATTERNS = [metric for metric in METRICS if metric.has_placeholder]


def find(key: str) -> Metric | None:
    """Return the entry of a key in a row; None if it has none, such as a metric of your own algorithm."""
    return _EXACT.get(key) or next((metric for metric in _PATTERNS if metric.matches(key)), None)

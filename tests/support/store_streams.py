"""Random env streams for the store's tests, and a slow model of what a ring must return."""

from dataclasses import dataclass, field

import numpy as np

from starling.state_io import Segmented
from starling.types import ArraySpec, Fragment, Layout, StackSpec, Trajectory


def make_layout(stack=None, carry=True):
    """Vector and (if `stack` is given) image observations, a dict of extras, and a recurrent state with two parts."""
    obs = {"vector": ArraySpec((3,), np.dtype(np.float32))}
    if stack is not None:
        shape = [2, 2]
        shape.insert(stack.axis, 2 * stack.n)  # frames are two wide along the stacked axis
        obs["image"] = ArraySpec(tuple(shape), np.dtype(np.uint8))
    state = {"h": ArraySpec((2,), np.dtype(np.float32)), "step": ArraySpec((), np.dtype(np.int64))}
    return Layout(
        obs=obs,
        action=ArraySpec((), np.dtype(np.int64)),
        rewards=("extrinsic", "rnd"),
        extras={"q": ArraySpec((2,), np.dtype(np.float32))},
        carry=state if carry else {},
        stack=stack,
    )


@dataclass
class RandomEnv:
    """One env: its current observation, and whether its next step is a reset."""

    rng: np.random.Generator
    layout: Layout
    padding: str  # how a stack begins: "zeros", "repeat", or "random"
    glitch: float  # probability that a stack does not slide
    end: float  # probability that a step ends the episode
    obs: dict = None
    first: bool = True
    ended: bool = False

    def __post_init__(self):
        self.reset()

    def _frame(self):
        n, axis = self.layout.stack.n, self.layout.stack.axis
        shape = list(self.layout.obs["image"].shape)
        shape[axis] //= n
        return self.rng.integers(1, 255, shape).astype(np.uint8)

    def reset(self):
        self.obs = {"vector": self.rng.standard_normal(3).astype(np.float32)}
        self.first, self.ended = True, False
        if self.layout.stack is not None:
            n, axis = self.layout.stack.n, self.layout.stack.axis
            new = self._frame()
            past = {"zeros": [np.zeros_like(new)] * (n - 1), "repeat": [new] * (n - 1)}
            past["random"] = [self._frame() for _ in range(n - 1)]
            self.obs["image"] = np.concatenate([*past[self.padding], new], axis=axis)

    def step(self):
        """One record of the stream: the observation, and the result of the step."""
        record = {"obs": self.obs, "first": self.first, "carry": self._carry(), "extras": self._extras()}
        record |= {"action": int(self.rng.integers(1, 5)), "terminated": False, "truncated": False}
        if self.ended:
            record |= {"valid": False, "rewards": (0.0, 0.0)}
            self.reset()
            return record
        record |= {"valid": True, "rewards": tuple(self.rng.standard_normal(2))}
        self.ended = bool(self.rng.random() < self.end)
        kind = self.rng.integers(3)  # 2: cut without a flag, as by a forced reset
        record["terminated"], record["truncated"] = self.ended and kind == 0, self.ended and kind == 1
        self._advance()
        return record

    def _advance(self):
        obs = {"vector": self.rng.standard_normal(3).astype(np.float32)}
        if self.layout.stack is not None:
            n, axis = self.layout.stack.n, self.layout.stack.axis
            frames = [*np.split(self.obs["image"], n, axis=axis)[1:], self._frame()]
            if self.rng.random() < self.glitch:
                frames[0] = self._frame()
            obs["image"] = np.concatenate(frames, axis=axis)
        self.obs, self.first = obs, False

    def _carry(self):
        return {"h": self.rng.standard_normal(2).astype(np.float32), "step": np.int64(self.rng.integers(1000))}

    def _extras(self):
        return {"q": self.rng.standard_normal(2).astype(np.float32)}

    def waiting(self):
        """The record of the observation that has no action yet."""
        return {"obs": self.obs, "first": self.first, "carry": self._carry(), "extras": self._extras()}


def make_envs(seed, count, layout, padding="zeros", glitch=0.0, end=0.2):
    rngs = np.random.default_rng(seed).spawn(count)
    return [RandomEnv(rng, layout, padding, glitch, end) for rng in rngs]


@dataclass
class Stream:
    """Several envs that make fragments together; `records` has the last fragment, one list per env."""

    envs: list
    numbers: np.ndarray
    layout: Layout
    records: list = field(default_factory=list)
    sequence: int = 0
    version: int = 0

    def fragment(self, length):
        self.records = [[env.step() for _ in range(length)] + [env.waiting()] for env in self.envs]
        self.sequence += 1
        self.version += 1
        version = np.array([self.version + i % 2 for i in range(len(self.envs))])
        for env_records, number in zip(self.records, version, strict=True):
            for record in env_records:
                record["policy_version"] = int(number)
        return to_fragment(self.records, self.numbers, version, self.layout, self.sequence)


def _stack(records, get, count, dtype):
    return np.stack([np.stack([np.asarray(get(env[t]), dtype) for env in records]) for t in range(count)])


def to_fragment(records, numbers, version, layout, sequence):
    steps = len(records[0]) - 1

    def shown(group, specs):
        return {k: _stack(records, lambda r, k=k: r[group][k], steps + 1, s.dtype) for k, s in specs.items()}

    def taken(name, dtype):
        return _stack(records, lambda r: r[name], steps, dtype)

    carries = shown("carry", layout.carry)
    trajectory = Trajectory(
        obs=shown("obs", layout.obs),
        first=_stack(records, lambda r: r["first"], steps + 1, bool),
        action=taken("action", np.int64),
        rewards={
            name: _stack(records, lambda r, i=i: r["rewards"][i], steps, np.float32)
            for i, name in enumerate(layout.rewards)
        },
        terminated=taken("terminated", bool),
        truncated=taken("truncated", bool),
        valid=taken("valid", bool),
        extras=shown("extras", layout.extras),
        carry={name: leaf[0] for name, leaf in carries.items()},
        policy_version=version,
    )
    return Fragment(trajectory, np.asarray(numbers), carries or None, actor_id=0, sequence=sequence)


@dataclass
class RingModel:
    """A naive model of a ring: one list of records per env, and sequences found by scanning."""

    length: int
    period: int
    burn_in: int
    cells: int
    history: int
    reads_past_end: bool = True
    records: dict = field(default_factory=dict)  # env index -> all records since the beginning
    order: list = field(default_factory=list)  # env indices in the order they appeared
    dropped: set = field(default_factory=set)  # (env index, start) of released sequences

    def append(self, numbers, new, joins):
        for number, records, joined in zip(numbers, new, joins, strict=True):
            number = int(number)
            if number not in self.records:
                self.records[number] = []
                self.order.append(number)
            env_records = self.records[number]
            if env_records and joined:
                env_records.pop()
            elif env_records:
                # No step follows the last observation, so it is final.
                env_records[-1] = {**env_records[-1], "valid": False}
            env_records.extend(records)

    def sequences(self):
        """{(slot, generation): (env index, start, steps)} of every sequence that must be stored."""
        found = {}
        for ring, number in enumerate(self.order):
            for start, steps in self._sequences_of(self.records[number]):
                if (number, start) not in self.dropped:
                    key = (ring * self.cells + start % self.cells, start // self.cells)
                    found[key] = (number, start, steps)
        return found

    def _sequences_of(self, records):
        head, segment = len(records) - 1, 0
        for start in range(head):
            if start == 0 or records[start]["first"] or not records[start - 1]["valid"]:
                segment = start
            steps = 0
            while steps < self.length and start + steps < head and records[start + steps]["valid"]:
                steps += 1
            ended = start + steps < head and not records[start + steps]["valid"]
            complete = steps == self.length or ended
            kept = start - self.history > head - self.cells
            if (
                complete
                and kept
                and steps > (0 if start == segment else self.burn_in)
                and (start - segment) % self.period == 0
            ):
                yield start, steps

    def expected(self, number, start, steps, layout):
        """One sequence as a trajectory without the batch axis, as nested dicts."""
        steps_and_final = [self.records[number][start + min(t, steps)] for t in range(self.length + 1)]
        real = [t < steps for t in range(self.length)]
        taken = list(zip(steps_and_final[:-1], real, strict=True))
        return {
            "obs": self._shown(steps_and_final, steps, layout),
            "extras": {k: np.stack([r["extras"][k] for r in steps_and_final]) for k in layout.extras},
            "first": np.array([steps_and_final[0]["first"]] + [False] * self.length),
            "action": np.array([r["action"] if ok else 0 for r, ok in taken]),
            "rewards": {
                k: np.array([r["rewards"][i] if ok else 0 for r, ok in taken], np.float32)
                for i, k in enumerate(layout.rewards)
            },
            "terminated": np.array([ok and r["terminated"] for r, ok in taken]),
            "truncated": np.array([ok and r["truncated"] for r, ok in taken]),
            "valid": np.array(real),
            "carry": {k: steps_and_final[0]["carry"][k] for k in layout.carry},
            "policy_version": min(r["policy_version"] for r, ok in taken if ok),
        }

    def _shown(self, records, steps, layout):
        """Observations; those after a termination, which nobody reads, keep sliding if the stacks before them slide."""
        shown = {k: np.stack([r["obs"][k] for r in records]) for k in layout.obs}
        over = any(r["terminated"] for r in records[:steps])
        if layout.stack is not None and over and not self.reads_past_end:
            n, axis = layout.stack.n, layout.stack.axis
            stacks = [np.split(image, n, axis) for image in shown["image"]]
            if all(np.array_equal(stacks[t][1:], stacks[t + 1][:-1]) for t in range(steps)):
                for t in range(steps + 1, len(stacks)):
                    stacks[t] = [*stacks[t - 1][1:], stacks[steps][-1]]
                shown["image"] = np.stack([np.concatenate(frames, axis) for frames in stacks])
        return shown


def assert_same(expected, got, path=""):
    """Assert that nested dicts, arrays, and segments are bitwise equal, including dtype and shape."""
    if isinstance(expected, dict):
        assert expected.keys() == got.keys(), path
        for key in expected:
            assert_same(expected[key], got[key], f"{path}/{key}")
    elif isinstance(expected, np.ndarray):
        assert expected.dtype == got.dtype, f"{path}: {got.dtype} instead of {expected.dtype}"
        assert expected.shape == got.shape, path
        assert np.ascontiguousarray(expected).tobytes() == np.ascontiguousarray(got).tobytes(), path
    elif isinstance(expected, Segmented):
        assert [part.read() for part in expected.parts] == [part.read() for part in got.parts], path
    else:
        assert expected == got, path


def column(trajectory, b):
    """Item `b` of a trajectory [T, B] as nested dicts without the batch axis."""
    out = {}
    for name in ("obs", "first", "action", "rewards", "terminated", "truncated", "valid", "extras"):
        value = getattr(trajectory, name)
        out[name] = {k: v[:, b] for k, v in value.items()} if isinstance(value, dict) else value[:, b]
    out["carry"] = {k: v[b] for k, v in trajectory.carry.items()}
    out["policy_version"] = int(trajectory.policy_version[b])
    return out


def stack_of(n, axis):
    return StackSpec("image", axis, n)

"""Branches: compare the settings of two runs, reject changes that are not possible, and adapt the saved state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from starling import tree
from starling.config.dialect import on_one_line
from starling.config.load import differences, to_saved
from starling.config.parts import OptimizerConfig
from starling.config.secrets import hide
from starling.errors import UserError
from starling.launch.plan import RunPlan, build_model, layout_of
from starling.learner.optimizer import moment_names
from starling.replay.spec import TableSpec

FIXED = ("algo.name", "env.id", "env.num", "env.args", "env.wrappers", "env.atari", "net", "init_from")
"""Settings that no branch changes: they define the agent, its environment, or its first weights; see also `nets`."""


@dataclass(frozen=True)
class BranchPlan:
    """Changes of a branch: settings with their old and new values, and the saved state that cannot be reused."""

    changes: dict[str, tuple[Any, Any]]
    longer: bool  # the run has another length, in env steps or in updates
    refill: bool
    emptied: tuple[str, ...]  # tables that cannot be redistributed to another number of learners
    restarted: tuple[str, ...]  # optimizers whose saved moments do not fit
    rescheduled: tuple[str, ...]  # optimizers with another schedule

    def lines(self) -> list[str]:
        changed = [
            f"changed: {key}: {on_one_line(old)} -> {on_one_line(new)}" for key, (old, new) in self.changes.items()
        ]
        if self.longer:
            changed.append("schedules over the run (learning rate, epsilon) move to their position in the new length")
        if self.refill:
            changed.append("the tables have another shape now: they are filled again before learning continues")
        elif self.emptied:
            changed.append(f"old sequences do not move to other learners: {', '.join(self.emptied)} start empty")
        if self.restarted:
            changed.append(f"the saved moments do not fit and are reset: optimizer {', '.join(self.restarted)}")
        return changed

    def optimizer_states(self, saved: dict[str, Any], fresh: dict[str, Any], updates: int) -> dict[str, Any]:
        """Return optimizer states to continue with after `updates`: saved where they fit, else `fresh`."""
        return {name: self._optimizer_state(name, saved.get(name, {}), state, updates) for name, state in fresh.items()}

    def _optimizer_state(self, name: str, saved: Any, fresh: Any, updates: int) -> Any:
        if name not in self.restarted + self.rescheduled:
            return saved
        schedule = fresh["schedule"]
        if schedule is not None:
            schedule = {**schedule, "last_epoch": updates, "_step_count": updates + 1}
        return {**fresh, "moments": (fresh if name in self.restarted else saved)["moments"], "schedule": schedule}


def check_branch(old: RunPlan, new: RunPlan) -> BranchPlan:
    """Return the changes of a branch from `old` to `new`; raises `UserError` for changes that are not possible."""
    found = differences(to_saved(old.config), to_saved(new.config))
    changes = {key: (hide(one, key), hide(other, key)) for key, (one, other) in found if key != "run"}
    refused = [key for key in changes if _is_fixed(key)]
    if refused:
        raise UserError(f"a branch cannot change {', '.join(refused)}: start a new run with starling train instead")
    if old.tables[0].fragment != new.tables[0].fragment:
        raise UserError("a branch cannot change how many steps are collected at once (algo.rollout, algo.fragment)")
    if _recorded(old) != _recorded(new):
        raise UserError(
            "a branch cannot change what is recorded beside the actions (algo.clear, features of algo.sources)"
        )
    unrolls = tuple(spec.name for spec in new.tables if spec.storage == "slots" and spec.sampler != "fifo")
    before, after = ({n: spec.config for n, spec in b.algorithm.learning().optimizers.items()} for b in (old, new))
    if new.config.nets and before.keys() != after.keys():
        raise UserError("a branch cannot change which networks have an optimizer of their own (nets.NAME.optimizer)")
    return BranchPlan(
        changes,
        longer=_whole(old) != _whole(new),
        refill=_kept(old) != _kept(new),
        emptied=unrolls if old.learners != new.learners else (),
        restarted=tuple(n for n in after if n not in before or not _same_moments(before[n], after[n])),
        rescheduled=tuple(n for n in after if n in before and _schedule(before[n]) != _schedule(after[n])),
    )


def _whole(run_plan: RunPlan) -> tuple[int | None, int | None]:
    """Return the length of the run that schedules refer to, in env steps and in updates."""
    return run_plan.length.env_steps, run_plan.length.updates


def _is_fixed(key: str) -> bool:
    if key.startswith("nets."):
        return key.split(".")[2:3] != ["optimizer"]
    return any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED)


def _same_moments(one: OptimizerConfig, other: OptimizerConfig) -> bool:
    """Return True if the moments of one optimizer fit another."""
    return one.name == other.name and (one.args == other.args or moment_names(one) == moment_names(other))


def _schedule(optimizer: OptimizerConfig) -> str | None:
    return None if optimizer.schedule is None else optimizer.schedule.name


def _recorded(run_plan: RunPlan) -> Any:
    """Return the specs of the extras that `act` records, by path."""
    return dict(tree.items(layout_of(run_plan, build_model(run_plan)).extras))


def _kept(run_plan: RunPlan) -> Any:
    """Return the properties that saved tables depend on: their specs, and the envs of every shard in a cluster."""
    envs = [env_index.tolist() for env_index in run_plan.remote_shard_envs()]
    return [_shape(spec) for spec in run_plan.tables], envs


def _shape(spec: TableSpec) -> TableSpec:
    """Return a table's spec with the fields reset that do not affect its content."""
    return replace(spec, updates_per_step=None, min_size=1, share=1.0, batch=1)

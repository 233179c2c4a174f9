"""All tables of an agent and the limiter over them: what actors insert into and learners sample from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starling.store.limiter import Limiter
from starling.store.mixture import Mixture
from starling.store.spec import TableSpec
from starling.store.table import Table
from starling.types import Fragment, Keys, Layout, NDArray, Sample, Trajectory


class Store:
    """Never blocks: `begin` and `sample` say no when it is not the time."""

    def __init__(
        self,
        specs: Sequence[TableSpec],
        layout: Layout,
        *,
        rows: int,
        seed: int,
        priority: Callable[[Trajectory[NDArray]], NDArray | None],
    ) -> None:
        self._batch = specs[0].batch
        self.limiter = Limiter(specs, rows)
        tables = [Table(spec, layout, rows, seed=seed, priority=priority, index=i) for i, spec in enumerate(specs)]
        self.mixture = Mixture(tables, [spec.share for spec in specs])
        self.env_steps = 0  # valid ones inserted so far

    def begin(self, rows: int) -> bool:
        """A credit to begin a fragment of so many rows."""
        if not self.limiter.may_begin(rows):
            return False
        self.limiter.begin(rows)
        return True

    def insert(self, fragment: Fragment) -> None:
        before = self.mixture.steps
        self.mixture.insert(fragment)
        fresh = self.mixture.steps - before
        self.env_steps += fresh
        self.limiter.inserted(fresh, len(fragment.rows))

    def sample(self) -> Sample | None:
        """One batch over all tables, by share; None until the limiter and every table allow it."""
        if not self.limiter.may_sample(self.mixture.sizes):
            return None
        sample = self.mixture.sample(self._batch)
        if sample is not None:
            self.limiter.sampled()
        return sample

    def learnt(self, keys: Keys, priorities: NDArray | None) -> None:
        """A batch has become new weights, which are published: credits return, priorities move."""
        if priorities is not None:
            self.mixture.reprioritize(keys, priorities)
        self.limiter.published()

    def metrics(self) -> dict[str, float]:
        """Size, and everything that was dropped with its reason, a table each."""
        rows: dict[str, float] = {}
        for table in self.mixture.tables:
            rows[f"store/{table.spec.name}/size"] = table.size
            rows |= {f"store/{table.spec.name}/{name}": count for name, count in table.counters.items()}
        return rows

    def check_valid(self) -> None:
        self.mixture.check_valid()
        self.limiter.check_valid()

    def get_state(self, with_tables: bool) -> dict[str, Any]:
        """Without the tables a resumed run fills them anew before it learns on."""
        if not with_tables:
            return {"env_steps": self.env_steps}
        return {
            "env_steps": self.env_steps,
            "limiter": self.limiter.get_state(),
            "tables": self.mixture.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.env_steps = state["env_steps"]
        if "tables" in state:
            self.limiter.set_state(state["limiter"])
            self.mixture.set_state(state["tables"])

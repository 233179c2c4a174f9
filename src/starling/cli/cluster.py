"""`starling cluster`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from starling.cli.arguments import Allow, Overrides, Source
from starling.cli.show import say
from starling.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starling.launch.ray import ClusterPlan
    from starling.runtime.ray.check import NodeFacts

cluster_app = typer.Typer(help="Inspect a Ray cluster.", no_args_is_help=True)


@cluster_app.callback()
def _root() -> None:
    pass


@cluster_app.command("check")
def check(
    source: Source,
    overrides: Overrides = None,
    allow: Allow = None,
) -> None:
    """Check whether a cluster is fit for a run: versions, resources, token, object store, bandwidth.

    Exits with code 2 and one line per problem.

    Example: starling cluster check impala-pong ray.address=auto actors=32
    """
    from starling.cli.precheck import load_source

    config = load_source(source, [*(overrides or []), "runtime=ray"], allow)

    from starling.launch.plan import RunPlan, build_model, layout_of
    from starling.launch.ray import ClusterPlan, check_cluster_run

    run_plan = RunPlan.from_config(config)
    model = build_model(run_plan)
    layout = layout_of(run_plan, model)
    check_cluster_run(run_plan, layout)
    wrong = _look(ClusterPlan.of(run_plan, model, layout))
    if wrong:
        raise UserError(*wrong)
    print("fit for this run")


def _look(plan: ClusterPlan) -> list[str]:
    """Print the properties of the cluster; return one line per problem."""
    from starling.runtime.ray import check, placement
    from starling.runtime.ray.cluster import Cluster

    cluster = Cluster(plan.run_plan.config.ray, plan.needs(1), plan.object_store)
    try:
        nodes = cluster.nodes()
        facts = check.survey(nodes, measure=True)
        for line in [line for one in facts for line in one.lines()]:
            say(line)
        needs = plan.needs(len(nodes))
        print(f"token authentication: {'off' if cluster.open_to_all else 'on'}")
        print("this run: " + "; ".join(map(str, needs)))
        wrong = [check.mismatch(facts), _small_store(plan, facts)]
        try:
            placement.check(needs, [one.resources for one in facts])
        except UserError as error:
            wrong.append(str(error))
        return [line for line in wrong if line is not None]
    finally:
        cluster.close()


def _small_store(plan: ClusterPlan, facts: Sequence[NodeFacts]) -> str | None:
    needed = plan.bytes_under_way
    print(f"object store: this run has up to {needed / 1e6:,.0f} MB under way")
    small = [one for one in facts if one.object_store < needed]
    if not small:
        return None
    return (
        f"node {small[0].address} has an object store of {small[0].object_store / 1e6:,.0f} MB and the run may have"
        f" {needed / 1e6:,.0f} MB under way: ray start --object-store-memory={2 * needed}"
    )

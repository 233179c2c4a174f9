"""A run over a Ray cluster; only this package imports `ray`, and only if a run needs it.

In the driver, the process of `starling train`, with the hub:

- `cluster`, `placement`, `cluster_lease`, `token`: connect, reserve the resources of all parts, give them back. `check`
  surveys a cluster before a run.
- `remote`: a Ray actor as a `Worker` of the hub's supervisor, over one `line`. Its three kinds are `remote_node`,
  `remote_rank`, and `remote_shard`; `remote_store` is the hub's store if shards hold the tables.

In Ray actors, one per part, on the nodes of the cluster:

- `node` holds env loops with their policies, or the evaluator. Its thread, `relay`, supervises them as processes of the
  same machine (`runtime.process_worker`).
- `rank_node` holds one of several learners. Its thread, `rank_relay`, has the learner in a process of the same machine.
- `shard` holds a part of the tables.

`messages` has what the driver and a node send each other; what a rank and a shard send is in `rank_relay` and `shard`.
"""

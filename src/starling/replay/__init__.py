"""Storage of experience, and the rules by which it is sampled.

The files, in the order in which to read them:

1. `spec`: `TableSpec`, all that an algorithm knows of this package.
2. `store`: one shard of all tables with the limiter; `limiter` says when acting and learning may go on.
3. `mixture`, `batching`: tables that fill one batch together, and their shares.
4. `table`: storage and sampler of one `TableSpec`; `samplers` (with `sum_tree`, `index_set`) choose slots.
5. `storage`: what a table asks of its storage; `slots` stores whole fragments, `ring` every step once.
6. Of a ring: `windows` tracks which sequences are complete; `columns` stores observations and defines the words of the
   next files; `grid` numbers cells, `frames` stores frame stacks, `codec` compresses, `sparse` has values of few cells.
7. `kernels` and `copying` are fast loops; `table_bytes` predicts memory.
"""

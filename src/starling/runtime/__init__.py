"""Where the parts of a run run, and how they talk; package `launch` builds the parts and connects them.

- The main loop, one file per topology: `inline_runtime` has all parts in one thread; in `processes_runtime` the learner
  runs here and the rest in workers; in `learners_runtime` several learners are workers too.
- The hub, a thread of the main process: `hub` owns the store, `credits` and `event_queue` belong to it, and
  `candidate_scorer` is a second thread for attentive and elite replay.
- The workers as the hub sees them: `worker` (the interface, and the kinds of workers), `process_worker` (a process on
  this machine; `ProcessWorker.start` starts it), `supervisor` (decides when they are started, killed, and restarted).
- A worker's own process: `worker_main` is its main function, `worker_roles` its loop if it acts, infers, or evaluates,
  and `rank` if it learns. `prewarm` starts the server that all of them are forked from; `open_files` and `leftovers`
  raise the limit of open files and clean up after a killed main process.
- What people see: `worker_output` (printed lines and stacks), `status` and `worker_status`.
- Between processes: `link` (pipes) with `messages`, `shared_memory`, `shared_weights`, `batch_buffer`,
  `experience_sink` (fragments), `inference_channel`.
- Several learners: `learners_runtime` names their files in the order in which they take part.
- A cluster: `lease` is all that the main loop knows of it; the rest is package `ray`.
"""

"""Public mathematics of reinforcement learning, as functions on tensors; docs/ops.md lists them."""

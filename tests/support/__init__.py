"""Helpers that several test modules share: batches, slow references, envs, and drivers of runs."""

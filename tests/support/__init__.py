"""Helpers shared by several test modules: batches, slow reference implementations, envs, and drivers of runs."""

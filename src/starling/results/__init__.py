"""Measured learning results of presets, one JSON line per run in `results.jsonl`."""

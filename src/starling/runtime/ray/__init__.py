"""A run over a Ray cluster; only this package imports `ray`, and only if a run needs it."""

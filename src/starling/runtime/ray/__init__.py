"""A run over a Ray cluster; the package `ray` is imported in here alone, and only when a run asks for it."""

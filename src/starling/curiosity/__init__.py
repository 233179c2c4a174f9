"""Intrinsic rewards: what makes an observation worth seeing."""

"""Files of a run that are sound in form, and far larger or more than any run writes."""

"""From a run file to the parts of a run."""

"""Several runs together: sweeps over settings, and tables and figures with intervals over seeds."""

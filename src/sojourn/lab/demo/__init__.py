"""The whole system on one machine, with something real to look at: `sojourn demo`."""

"""Networks to plan measurement in, and what is measured in them: topologies, paths, upgrade plans."""

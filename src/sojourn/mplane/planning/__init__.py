"""From a topology to what is measured: paths, segments, upgrades and m-sets."""

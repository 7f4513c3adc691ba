"""The lab's worlds of IoTm, with the array's parameters by their names."""

from __future__ import annotations

from sojourn.lab import metrics
from sojourn.lab.metrics import START_NS, DiskWorld, message_world
from sojourn.sketches.bucket_array import BucketArrayParameters

__all__ = ["START_NS", "DiskWorld", "disk_world", "message_world"]

WORLD_OPTIONS = ("sizes", "processes", "epochs", "burst", "largest")


def disk_world(seed: int, **options) -> DiskWorld:
    """`sojourn.lab.metrics.disk_world`, by default of 20 buckets with 5 for each instance."""
    world = {name: options.pop(name) for name in WORLD_OPTIONS if name in options}
    return metrics.disk_world(seed, BucketArrayParameters(**{"buckets": 20, "per_instance": 5, **options}), **world)

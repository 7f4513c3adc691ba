"""`sojourn warm-up`: compiles all kernels now, so that no later command has to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.cli.output import progress
from sojourn.core.compiling import cache_directory
from sojourn.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from sojourn.core.arrays import PacketBatch
    from sojourn.epochs.epoch import Epoch
    from sojourn.segments.plan import SegmentPlan

HELP = "Compile for this machine what commands need, once: after an installation, in an image, before a service starts."
EXAMPLE = "Example:  sojourn warm-up"

# Each runs on the files of a small world; kernels are compiled for types, whatever the content.
_RUNS = {
    "flows": ["flows in.pcap tcp"],
    "rtt": ["rtt in.pcap"],
    "measure": [
        *(f"measure in.pcap out.pcap --truth --sketch {sketch}" for sketch in ("auto", "lds", "colate", "sample")),
        *(f"measure in.pcap out.pcap --sketch {sketch}" for sketch in ("lda", "ledger", "exact")),
        "measure early.pcap out.pcap --by dscp --identity payload",
        *(f"measure in.pcap out.pcap --sketch {sketch} --method literal" for sketch in ("lds", "colate")),
    ],
    "record": [
        "record in.pcap --keys -w in.epochs",
        "record out.pcap --keys -w out.epochs",
        "estimate in.epochs out.epochs",
    ],
    "query": [],
    "segment": [],
    "tomography": ["tomography trace.csv"],
    "mplane": ["mplane upgrade ring.csv --count 2 --traffic ring-traffic.csv"],
}
_CAPTURING = {"flows", "rtt", "measure", "record", "segment"}


def warm_up(
    commands: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help=f"Only for these: {', '.join(_RUNS)}.")
    ] = None,
) -> None:
    """Run every command once on a small world."""
    chosen = commands or list(_RUNS)
    if unknown := [name for name in chosen if name not in _RUNS]:
        raise UsageError(
            f"{unknown[0]!r} has nothing to compile", where="warm-up", action=f"choose of {', '.join(_RUNS)}"
        )
    kept = cache_directory()
    if kept is None:
        raise StoreError("nothing can be kept", where="warm-up", action="set SOJOURN_CACHE_DIR to a writable directory")
    from sojourn.lab.small_world import write_small_world

    os.environ["SOJOURN_QUIET"] = "1"  # that something is compiled is what was asked for
    runs = [run for name in chosen for run in _RUNS[name]]
    with tempfile.TemporaryDirectory() as folder, progress("warming up") as advance:
        write_small_world(Path(folder))
        for i, run in enumerate(runs):
            advance(run, i / len(runs))
            _run(run, folder)
    if not _CAPTURING.isdisjoint(chosen):
        _prepare_live_capture()
    if "query" in chosen:
        _prepare_metrics()
    if "segment" in chosen:
        _prepare_segments()
    print(f"sojourn: compiled for this machine; kept in {kept}", file=sys.stderr)


def _run(arguments: str, folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sojourn", *arguments.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        print(f"sojourn: warning: `sojourn {arguments}` could not be prepared: {last}", file=sys.stderr)


def _prepare_live_capture() -> None:
    """Compile what reads the kernel's ring and what a live capture rehearses; it needs no packet and no right."""
    import mmap

    import numpy as np

    from sojourn.capture.decode.decoder import DecodeOptions
    from sojourn.capture.decode.segmentation import WireSizes
    from sojourn.capture.live.reader import rehearsal
    from sojourn.capture.live.ring import Ring, RingShape, keep

    shape = RingShape(block_size=mmap.PAGESIZE, blocks=1, retire_ms=1)
    ring = Ring(mmap.mmap(-1, shape.size), shape)
    none, ignored = np.empty(0, np.int64), np.zeros(4, np.int64)
    keep(ring.index(none, link=1, directions=0, start_ns=0, stop_ns=0, ignored=ignored)[0])
    rehearsal(DecodeOptions(wire=WireSizes(), dscp=True))


def _prepare_metrics() -> None:
    """Compile what a query unit answers metrics by: its workers may not take the memory that compiling takes."""
    import numpy as np

    from sojourn.core.arrays import MeasurementBatch
    from sojourn.core.keys import ProcessKey, key_id
    from sojourn.epochs.epoch import Epoch
    from sojourn.epochs.wire import decode, encode
    from sojourn.estimation.buckets.queries import FOREVER_NS, RangeQuery
    from sojourn.estimation.buckets.questions import Question, answer_streams
    from sojourn.node.agent.local import Spooled
    from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters

    random = np.random.default_rng(1)
    keys = tuple(ProcessKey(f"program{number}", 100 + number) for number in range(100))
    ids = np.array([key_id(key) for key in keys], np.uint64)

    def recorded(buckets: int) -> list[Epoch]:
        epochs = []
        for salt in (0, 1):
            array = BucketArray(
                BucketArrayParameters(buckets=buckets, per_instance=3, bits=40, count_bits=24, salt=salt)
            )
            values, times_ns = random.integers(1, 10_000, len(ids)), np.full(len(ids), 10**18 + salt)
            array.record_batch(MeasurementBatch(ids, values, times_ns, ids))
            epochs.append(decode(encode(Epoch("node", "stream", salt, array, keys))))
        return epochs

    # In the second most buckets have one instance alone, and are taken out of the equations first.
    for buckets in (150, 1000):
        spooled = [Spooled(recorded(buckets), "node", "ns")]
        for stat in ("sum", "mean"):
            for instance in ("*", str(keys[0])):
                for method in ("joint", "literal"):
                    asked = RangeQuery(from_ns=0, to_ns=FOREVER_NS, stat=stat, method=method)
                    answer_streams(spooled, Question(range=asked, instance=instance))


def _prepare_segments() -> None:
    """Compile what agents record of segments, and what a query unit answers them by."""
    from sojourn.lab.two_point import make_two_point_world
    from sojourn.segments.fleet.answers import answer_run, combine
    from sojourn.segments.fleet.clocks import follow
    from sojourn.segments.fleet.markers import MarkerCuts
    from sojourn.segments.plan import plan_point
    from sojourn.segments.record import KeyReports, PointRecorder

    world = make_two_point_world(seed=1, flows=50, packets=5000, load=0.9)

    def recorded(plan: SegmentPlan, batch: PacketBatch) -> list[Epoch]:
        keys = KeyReports(lambda rows: [world.keys[int(i)] for i in batch.flow_id[rows]], flows=50)
        recorder = PointRecorder("node", "point", plan.stream, keys=keys, markers=MarkerCuts(10**9))
        return [*recorder.record(batch), *recorder.finish()]

    for memory in (4096, 128_000):
        plan = plan_point(memory, flows=50, loss=0.01)
        sent, received = recorded(plan, world.sender), recorded(plan, world.receiver)
        run = answer_run(sent, received, before=partial(list, sent[:1]))
        combine([run], follow([run.frame], run.pairs, run.pairs))

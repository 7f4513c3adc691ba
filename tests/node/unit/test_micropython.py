"""The node unit on a real MicroPython (its WebAssembly port, by Node.js): the bytes of CPython, and its memory."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from sojourn.node.unit.delay_unit import DelayUnit, pack, unpack
from sojourn.node.unit.rtt_unit import RttUnit
from sojourn.node.unit.unit import Instance, NodeUnit
from sojourn.sketches.bucket_array import SPREADINGS

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
PORT = ROOT / ".venv" / "micropython" / "node_modules" / "@micropython" / "micropython-webassembly-pyscript"
SOURCE = ROOT / "src" / "sojourn" / "node" / "unit"
START_NS = 1_700_000_000_000_000_000

# The paper's arrays: disk IO with 20 and 40 buckets of 16 bits, round trips with sums and counts of 32.
SIZES = [
    ((20, 5), {}),
    ((40, 5), {}),
    ((20, 5), {"spreading": "hashed-steps"}),
    ((20, 5), {"bits": 32, "count_bits": 32, "signed": True, "wrap": True, "spreading": "sequence"}),
]


def make_cases(seed: int) -> list[tuple[tuple[int, int], dict[str, object], list[tuple[int, int, int]]]]:
    draw = random.Random(seed)
    cases = []
    for k in range(24):
        signed = draw.random() < 0.5
        options = {
            "bits": draw.randint(3, 64),
            "count_bits": draw.choice([0, 4, 16, 64]),
            "signed": signed,
            "wrap": signed and draw.random() < 0.5,
            "spreading": SPREADINGS[k % 4],
            "salt": draw.getrandbits(64),
            "seed": draw.getrandbits(64),
        }
        ids = [draw.getrandbits(64) for _ in range(6)]
        low = -500 if signed else 0
        rows = [(draw.choice(ids), draw.randint(low, 500), draw.getrandbits(64)) for _ in range(draw.randint(0, 60))]
        cases.append(((draw.randint(1, 40), draw.randint(1, 9)), options, rows))
    return cases


def make_rtt_events(seed: int) -> list[tuple[str, int, int, int]]:
    """Packets of three flows over an edge, some lost, and the turn into the second epoch."""
    draw = random.Random(seed)
    events = []
    for flow in (draw.getrandbits(64) for _ in range(3)):
        for k in range(60):
            number = (2**32 - 2000 + 100 * k) % 2**32
            sent = START_NS + k * 10**7
            events.append(("sent", flow, number, sent))
            if draw.random() > 0.02:
                events.append(("acknowledged", flow, number, sent + draw.randint(10**6, 10**8)))
    events.append(("turn", 0, 10, START_NS + 3 * 10**8))
    return sorted(events, key=lambda event: event[3])


def make_delay_events(seed: int) -> list[tuple[str, int, int]]:
    """What happens to 200 packets at a node with a queue of 12, too short now and then, on a clock of 30 bits."""
    draw = random.Random(seed)
    events: list[tuple[str, int, int]] = []
    queue: list[int] = []
    now = 2**30 - 10**6
    for packet in range(200):
        now += draw.randint(0, 60_000)
        events.append(("generated" if draw.random() < 0.3 else "received", packet, now % 2**30))
        queue.append(packet)
        while queue and draw.random() < 0.5:
            for _ in range(draw.randint(0, 4)):
                now += draw.randint(1_000, 20_000)
                events.append(("sent", queue[0], now % 2**30))
            events.append(("done", queue.pop(0), 0))
    return events


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """What the program printed on MicroPython, by the first word of the line."""
    missing = [what for what, there in (("node", shutil.which("node")), (str(PORT), PORT.is_dir())) if not there]
    if missing:
        reason = f"no MicroPython to test on: {' and '.join(missing)} missing; `make test` installs it where npm exists"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}, and CI skips nothing")
        pytest.skip(reason)
    cases = tmp_path_factory.mktemp("micropython") / "cases.py"
    cases.write_text(
        f"CASES = {make_cases(1)!r}\nSIZES = {SIZES!r}\nRTT_EVENTS = {make_rtt_events(2)!r}\n"
        f"DELAY_EVENTS = {make_delay_events(3)!r}\n"
    )
    lines: dict[str, list[list[str]]] = {}
    for program in ("micropython_program.py", "memory_program.py", "delay_program.py"):
        command = ["node", HERE / "run_micropython.mjs", PORT, HERE / program]
        command += [SOURCE / "unit.py", SOURCE / "rtt_unit.py", SOURCE / "delay_unit.py", cases]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == 0, result.stderr + result.stdout[-2000:]
        for line in result.stdout.splitlines():
            word, *rest = line.split()
            lines.setdefault(word, []).append(rest)
    return lines


def test_epochs_and_local_answers_are_those_of_cpython(printed: dict[str, list[list[str]]]) -> None:
    epochs, estimates = [], []
    for (buckets, per_instance), options, rows in make_cases(1):
        unit = NodeUnit(buckets, per_instance, **options)
        instances: dict[int, Instance] = {}
        for time_ns, (instance_id, value, sequence) in enumerate(rows):
            instance = instances.setdefault(instance_id, Instance(instance_id))
            if not unit.insert(instance, value, START_NS + time_ns, sequence):
                break
        epochs.append(unit.snapshot("node", "disk", keys=[b"\x04abc"]).hex())
        estimates.append([str(v) for v in unit.estimate(instances[rows[0][0]])] if instances else ["none"])
    assert [line[0] for line in printed["epoch"]] == epochs
    for found, expected in zip(printed["estimate"], estimates, strict=True):
        if expected == ["none"]:
            assert found == expected
        else:
            assert [float(v) for v in found] == pytest.approx([float(v) for v in expected], rel=1e-9)


def test_round_trips_are_those_of_cpython(printed: dict[str, list[list[str]]]) -> None:
    def new_unit() -> NodeUnit:
        return NodeUnit(20, 5, bits=32, count_bits=16, signed=True, wrap=True, spreading="sequence", salt=9)

    unit = RttUnit(new_unit)
    flows: dict[int, Instance] = {}
    for what, flow, number, time_ns in make_rtt_events(2):
        instance = flows.setdefault(flow, Instance(flow))
        if what == "turn":
            unit.turn(number)
        else:
            (unit.sent if what == "sent" else unit.acknowledged)(instance, number, time_ns)
    assert [line[0] for line in printed["rtt"]] == [epoch.hex() for epoch in unit.closing("node", "rtt")]
    assert len(printed["rtt"]) == 2


def test_sums_of_delays_are_those_of_cpython_and_take_little(
    printed: dict[str, list[list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    unit = DelayUnit(12, ticks_per_second=10**6, clock_bits=30)
    slots: dict[int, int] = {}
    frames = bytearray()
    for what, packet, ticks in make_delay_events(3):
        if what == "done":
            unit.done(slots.pop(packet))
        elif what != "sent":
            slots[packet] = getattr(unit, what)(ticks)
        elif (value := unit.sent(slots[packet], ticks)) is not None:
            frames += b"\0\0"
            pack(frames, len(frames) - 2, value)
    assert printed["delay-frames"] == [[frames.hex(), str(unit.refused)]]
    sums = [unpack(frames, at) for at in range(0, len(frames), 2)]
    assert unit.refused > 0
    assert len(sums) > 50
    assert None in sums
    assert len(set(sums)) > 40
    code, whole = (int(text) for text in printed["delay-memory"][0])
    with capsys.disabled():
        print(f"\nMicroPython heap: {code} B code of the delay unit (from source), {whole} B with 12 slots")
    assert 9 * 12 < whole < 1024


def test_buckets_take_tens_of_bytes(printed: dict[str, list[list[str]]], capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's 40 to 80 bytes of buckets (160 for round trips); the whole object stays below 1 KiB."""
    memory = [[int(v) for v in line] for line in printed["memory"]]
    code, instance = int(printed["code"][0][0]), int(printed["instance"][0][0])
    with capsys.disabled():
        print(f"\nMicroPython heap: {code} B code (from source), {instance} B per instance")
        for (size, options), (buckets, whole) in zip(SIZES, memory, strict=True):
            print(f"MicroPython heap: n, m = {size} {options}: {buckets} B buckets, {whole} B unit")
    assert [buckets for buckets, _ in memory] == [40, 80, 40, 160]
    assert all(buckets < whole < 1024 for buckets, whole in memory)
    assert 0 < instance < 256

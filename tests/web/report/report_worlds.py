"""Answers to report on: real ones, large ones, and ones whose names want to be code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import sojourn
from sojourn.mplane.measurements import Segment, SegmentMeasurement
from sojourn.mplane.planning.paths import PathSegments
from sojourn.mplane.station.diagnosis import Diagnosis, DiagnosisPlan, diagnose
from sojourn.papers.reproduction import Claim, Figure, Line, Reproduction, Scale

MS = 1_000_000
START = 1_794_712_577 * 10**9
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e"


def large_segment(flows: int = 10_000, name: str = "ingress.pcap") -> sojourn.SegmentResult:
    """A sketch's answer for so many flows, of which some have none; the first is called by a hostile name."""
    rng = np.random.default_rng(7)
    mean = (rng.lognormal(16.5, 0.8, flows)).astype(np.int64).tolist()
    packets = rng.pareto(1.1, flows).astype(np.int64) + 1
    rows: list[dict[str, Any]] = []
    for k in range(flows):
        has = k % 97 != 5
        rows.append(
            {
                "src_ip": f"10.{k >> 16 & 255}.{k >> 8 & 255}.{k & 255}" if k else HOSTILE,
                "src_port": 1024 + k % 60000,
                "dest_ip": f"192.0.2.{k % 254}",
                "dest_port": 443,
                "protocol": "tcp" if k % 3 else "udp",
                "packets": int(packets[k]),
                "lost": int(packets[k]) // 50,
                "lost_low": 0,
                "lost_high": int(packets[k]) // 20,
                "mean_ns": mean[k] if has else None,
                "std_ns": mean[k] // 3 if has else None,
                "low_ns": mean[k] * 9 // 10 if has else None,
                "high_ns": mean[k] * 23 // 20 if has else None,
                "samples": int(packets[k]),
                "method": "lds joint" if has else None,
                "reason": None if has else "no usable cells",
                "p50_ns": mean[k] * 95 // 100 if has else None,
                "p99_ns": mean[k] * 3 if has else None,
            }
        )
    sent = int(packets.sum())
    total = {
        "sent": sent, "received": sent - sent // 50, "lost": sent // 50, "lost_low": sent // 60,
        "lost_high": sent // 40, "extra": 0, "mean_ns": 17 * MS, "std_ns": 9 * MS, "low_ns": 16 * MS,
        "high_ns": 18 * MS, "samples": sent, "method": "auto",
        **{f"p{p}_{part}": v * MS * f // 10 for p, v in (("50", 15), ("90", 30), ("99", 60), ("999", 140))
           for part, f in (("ns", 10), ("low_ns", 8), ("high_ns", 13))},
    }  # fmt: skip
    return sojourn.SegmentResult.from_dict(
        {
            "direction": {"sender": name, "receiver": "egress.pcap", "other_way": 12},
            "aggregate": total,
            "sketch": {"name": "auto", "parameters": {}, "memory_bytes": 131072, "bits_per_packet": 0.4},
            "clock": {"offset_ns": 0, "skew_ppm": 0.0, "uncertainty_ns": 12_000, "corrected": True},
            "ignored": {"other direction at sender": 12},
            "intervals": [],
            "flows": rows,
            "warnings": [f"the capture {name} is damaged at byte 4711; it was read up to there"],
        }
    )


def diagnosis() -> Diagnosis:
    """A path of which one segment became slow."""
    segments = (Segment.between("a", "b"), Segment.inside("a", "b", "c"), Segment.between("b", "c"))
    path = PathSegments("a", "c", ((("a", "b", "c"), 1.0),), dict.fromkeys(segments, 1.0), frozenset("b"))
    rng = np.random.default_rng(5)
    rows = []
    for k in range(30):
        for place, segment in enumerate(segments):
            slow = 6 * MS if place == 1 and k >= 27 else 0
            rows.append(
                SegmentMeasurement(
                    segment=segment,
                    dscp=0,
                    interval=k,
                    start_ns=START + k * 10**9,
                    end_ns=START + (k + 1) * 10**9,
                    packets=1000,
                    lost=1 if k < 27 else 4,
                    mean_ns=float((place + 1) * MS + slow + rng.normal(0, 3e4)),
                    std_ns=2e5,
                    method="lda",
                )
            )
    return diagnose(path, rows, DiagnosisPlan())


def reproduction() -> Reproduction:
    """A paper with claims that hold and one that does not."""
    x = [8, 16, 32, 64]
    lines = [
        Line("as published", x, [0.5, 0.3, 0.2, 0.1], "literal"),
        Line("joint", x, [0.2, 0.1, 0.05, 0.02], "joint"),
        Line("paper", x, [0.4, 0.3, 0.2, 0.1], "paper"),
    ]
    claims = (
        Claim("accuracy", "%", "median error", 2.5, 0.5, 9.0, paper=2.0, reproduced=True),
        Claim("memory", "KiB", "of a flow", 12.0, paper=4.0, reproduced=False),
    )
    figure = Figure(
        "error-by-memory", "memory (KiB)", "relative error", {"few flows": lines, "many flows": lines}, "xy"
    )
    return Reproduction("lds", "A paper about sketches", Scale.SMALL, "Scale small, 2 experiments.", claims, (figure,))


def write_trace(path: Path) -> Path:
    """A sink's trace of seven nodes in a tree."""
    rng = np.random.default_rng(2)
    lines = ["origin,seq,path,t0_s,t_sink_s"]
    paths = {1: "1-0", 2: "2-1-0", 3: "3-1-0", 4: "4-2-1-0", 5: "5-3-1-0", 6: "6-4-2-1-0"}
    for sequence in range(12):
        for origin, way in paths.items():
            begin = sequence * 20 + origin * 1.7 + rng.random()
            hops = way.count("-")
            lines.append(f"{origin},{sequence},{way},{begin:.6f},{begin + hops * 0.02 + rng.exponential(0.05):.6f}")
    path.write_text("\n".join(lines) + "\n")
    return path

"""Fuzz: `python -m fuzz [TARGET ...] [--scale N]`, `python -m fuzz TARGET --input FILE`.

Each target runs in a process of its own, first with interpreted kernels (the fuzzer sees their branches, every load is
checked), then with compiled ones, starting from what the first run found. Inputs live in a folder that is removed at
the end; a finding is kept in the folder of `--findings`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Target → executions with interpreted and with compiled kernels, in thousands.
PLAN = {
    "capture": (60, 500),
    "rtt": (20, 150),
    "compressed": (0, 150),
    "epochs": (20, 150),
    "expressions": (0, 60),
    "programs": (20, 80),
    "keys": (0, 300),
}
_PROGRESS = re.compile(r"^#(\d+)\s+(INITED|DONE)\s+cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Stage:
    """One run of the fuzzer over one target."""

    target: str
    interpreted: bool
    runs: int

    @property
    def name(self) -> str:
        return f"{self.target} ({'interpreted' if self.interpreted else 'compiled'})"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(PLAN)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="times the planned executions (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer's choices")
    parser.add_argument("--findings", type=Path, default=Path(".fuzz"), help="where inputs that fail are kept")
    parser.add_argument("--input", type=Path, help="run one target on one file, without the fuzzer")
    parser.add_argument("--interpreted", action="store_true", help="with --input: kernels in the interpreter")
    parser.add_argument("--seeds", action="store_true", help="run the seeds alone, without the fuzzer")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.targets) - set(PLAN):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(PLAN)}")
    if (options.input or options.worker) and len(options.targets) != 1:
        parser.error("--input takes exactly one target")
    return options


def _load(name: str):  # type: ignore[no-untyped-def]
    """The target of that name; nothing of the product is imported before its kernels' kind is known."""
    from numba import config

    if config.DISABLE_JIT:
        from fuzz.interpreted import check_memory

        check_memory()
    from fuzz.captures import CAPTURE, COMPRESSED, RTT
    from fuzz.epochs import EPOCHS
    from fuzz.filters import EXPRESSIONS, PROGRAMS
    from fuzz.keys import KEYS

    return {t.name: t for t in (CAPTURE, COMPRESSED, RTT, EPOCHS, EXPRESSIONS, PROGRAMS, KEYS)}[name]


def _work(name: str, arguments: list[str]) -> None:
    from fuzz.engine import fuzz

    fuzz(_load(name), arguments, limited=os.environ.get("NUMBA_DISABLE_JIT") != "1")


def _write_seeds(name: str, folder: Path) -> None:
    for number, seed in enumerate(_load(name).seeds()):
        (folder / f"seed-{number}").write_bytes(seed)


def _run_stage(stage: Stage, options: argparse.Namespace, corpus: Path) -> bool:
    """Run one stage and print what it did; whether it found nothing."""
    options.findings.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fuzz", stage.target, "--worker", str(corpus)]
    command += [f"-runs={stage.runs}", f"-seed={options.seed}", f"-artifact_prefix={options.findings}/{stage.target}-"]
    if not stage.interpreted:
        command.append("-keep_seed=1")  # what the interpreted kernels told apart looks alike from outside
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1" if stage.interpreted else "0"}
    log = options.findings / f"{stage.target}-{'interpreted' if stage.interpreted else 'compiled'}.log"
    with log.open("w") as file:
        done = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    print(_summary(stage, text), flush=True)
    if done.returncode:
        print("\n".join(text.splitlines()[-25:]), file=sys.stderr)
        print(f"{stage.name}: a finding; the input is in {options.findings}, the log {log}", file=sys.stderr)
    return done.returncode == 0


def _summary(stage: Stage, log: str) -> str:
    progress = {kind: numbers for *numbers, kind in ((m[0], m[2], m[3], m[4], m[1]) for m in _PROGRESS.findall(log))}
    first, last = progress.get("INITED"), progress.get("DONE")
    if not first or not last:
        return f"{stage.name}: ended early"
    speed = re.search(r"Done \d+ runs in (\d+) second", log)
    seconds = max(1, int(speed[1])) if speed else 1
    runs = int(last[0])
    return (
        f"{stage.name}: {runs:,} executions in {seconds} s ({runs // seconds:,}/s), "
        f"branches {first[1]} to {last[1]}, features {first[2]} to {last[2]}, corpus {last[3]}"
    )


def _fuzz_all(options: argparse.Namespace) -> int:
    found = 0
    for target in options.targets or PLAN:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            corpus = Path(folder)
            seeds = [sys.executable, "-m", "fuzz", target, "--worker", "seeds", folder]
            subprocess.run(seeds, check=True)
            for interpreted, thousands in zip((True, False), PLAN[target], strict=True):
                runs = int(1000 * thousands * options.scale)
                if runs:
                    found += not _run_stage(Stage(target, interpreted, runs), options, corpus)
    return 1 if found else 0


def main() -> int:
    options = _parse()
    if options.worker:
        if options.worker[0] == "seeds":
            _write_seeds(options.targets[0], Path(options.worker[1]))
        else:
            _work(options.targets[0], options.worker)
        return 0
    if options.input:
        if options.interpreted:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
        _load(options.targets[0]).run(options.input.read_bytes())
        return 0
    if options.seeds:
        for name in options.targets or PLAN:
            target = _load(name)
            print(f"{name}: {sum(1 for _ in map(target.run, target.seeds()))} seeds")
        return 0
    return _fuzz_all(options)


if __name__ == "__main__":
    sys.exit(main())

"""`sojourn pseudonym`, and `sojourn query --pseudonyms`: keys are made, and who has one sees through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, running_unit

from command_line import printed
from sojourn.core.errors import InputError, UsageError
from sojourn.core.keys import key_id, parse_key
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.epochs.epoch import Epoch
from sojourn.node.spool.spool import Spool
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters
from sojourn.store.epochs import StreamRecord

WIDE = BucketArrayParameters(buckets=64, per_instance=3, bits=24, count_bits=16)
VALUES = {"mosquitto[812]": 3, "sshd[7]": 4, "10.0.0.7:40112 > 10.0.0.2:1883 tcp": 5, "modules": 6}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """One that is always the same, so that the same instances share buckets in each run."""
    path = tmp_path / "pseudonyms.key"
    path.write_text(bytes(range(32)).hex())
    path.chmod(0o600)
    return path


def recorded(key: Path) -> Epoch:
    hidden, sketch = Pseudonyms.of_file(key, node="alpha"), BucketArray(WIDE)
    keys = tuple(hidden.key(parse_key(text)) for text in VALUES)
    for named, value in zip(keys, VALUES.values(), strict=True):
        sketch.record(key_id(named), value, 10**9)
    return Epoch("alpha", "disk", 0, sketch, keys)


@pytest.fixture
def unit(tmp_path: Path, key: Path) -> Iterator[Unit]:
    running = running_unit(tmp_path / "data", LIMITS)
    unit = next(running)
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add([recorded(key)])
    yield unit
    next(running, None)


def asked(unit: Unit, *options: str | Path) -> list[dict]:
    about = ("query", "--metric", "disk_io", "--node", "alpha", "--from", "0", "--stored", "--format", "json")
    answer = json.loads(printed(*about, "--server", unit.url, "--token", unit.tokens["viewer"], *options))
    return answer if isinstance(answer, list) else [answer]


def test_words_go_there_and_back(key: Path, tmp_path: Path) -> None:
    words = ["10.0.0.7", "10.0.0.0/24", "::1", "mosquitto", "mosquitto[*]", "10.0.0.7:1 > 10.0.0.2:1883 tcp", "10.0.*"]
    hidden = printed("pseudonym", "of", "--pseudonyms", key, *words).splitlines()
    assert len(hidden) == len(words)
    assert not set(hidden) & set(words)
    (tmp_path / "names").write_text("sshd\n mosquitto \n\n")
    shown = printed("pseudonym", "reveal", "--pseudonyms", key, "--names", tmp_path / "names", *hidden)
    assert shown.splitlines() == words
    without = printed("pseudonym", "reveal", "--pseudonyms", key, *hidden).splitlines()
    assert [word for word, clear in zip(hidden, without, strict=True) if word == clear] == hidden[3:5]


def test_a_key_is_made_once_and_told_apart(tmp_path: Path) -> None:
    prints = {printed("pseudonym", "key", "-w", tmp_path / name).strip() for name in ("one", "other")}
    assert prints == {Pseudonyms.of_file(tmp_path / name).fingerprint for name in ("one", "other")}
    assert len(prints) == 2


def test_a_key_is_not_overwritten_and_parts_of_names_are_refused(key: Path) -> None:
    with pytest.raises(UsageError, match="there is a file already"):
        printed("pseudonym", "key", "-w", key)
    with pytest.raises(UsageError, match="only whole ones"):
        printed("pseudonym", "of", "--pseudonyms", key, "mosq*")


def test_who_has_the_key_asks_and_is_answered_in_clear(unit: Unit, key: Path, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("mosquitto\nsshd\nmodules\n")
    hidden = ("--pseudonyms", key)
    listed = asked(unit, "--all", *hidden, "--names", tmp_path / "names")
    assert {row["instance"]: row["value"] for row in listed} == pytest.approx(VALUES, abs=0.1)
    some = {row["instance"] for row in asked(unit, "--all", *hidden)}
    assert "10.0.0.7:40112 > 10.0.0.2:1883 tcp" in some
    assert "mosquitto[812]" not in some
    for instance, value in VALUES.items():
        (answer,) = asked(unit, "--instance", instance, *hidden)
        assert (answer["instance"], answer["value"]) == (instance, pytest.approx(value, abs=0.1))
    for pattern, value in (("mosquitto[*]", 3), ("10.0.*", 5), ("10.0.0.7:* > *:1883 tcp", 5)):
        (answer,) = asked(unit, "--instance", pattern, "--group", "pattern", *hidden)
        assert (answer["instance"], answer["value"]) == (pattern, pytest.approx(value, abs=0.1))
    with pytest.raises(InputError, match=r"nobody has seen 'mosquitto\[9\]' in the range"):
        asked(unit, "--instance", "mosquitto[9]", *hidden)


def test_without_the_key_there_are_pseudonyms_alone(unit: Unit, key: Path) -> None:
    assert not {row["instance"] for row in asked(unit, "--all")} & VALUES.keys()
    with pytest.raises(InputError, match="nobody has seen 'mosquitto"):
        asked(unit, "--instance", "mosquitto[812]")
    (total,) = asked(unit)
    assert total["value"] == sum(VALUES.values())
    with pytest.raises(UsageError, match="give --pseudonyms, too"):
        asked(unit, "--names", key)


def test_a_nodes_own_spool_is_asked_in_the_same_way(key: Path, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", limit_bytes=1 << 20)
    spool.put(recorded(key))
    spool.close()
    about = ("query", "--metric", "disk_io", "--spool", tmp_path / "spool", "--from", "0", "--format", "json")
    answer = json.loads(printed(*about, "--instance", "sshd[7]", "--pseudonyms", key))
    assert (answer["instance"], answer["value"]) == ("sshd[7]", pytest.approx(4, abs=0.1))

"""The commands around a query unit: `serve`, `token`, `nodes` and `query` say what is wrong, and do nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from query_unit import LIMITS, PARAMETERS, Unit, make_epoch, running_unit
from typer.testing import CliRunner

from command_line import printed
from sojourn.cli.main import app
from sojourn.core.errors import InputError, SojournError, UsageError
from sojourn.core.keys import ProcessKey, key_id
from sojourn.node.spool.spool import Spool
from sojourn.server.door.limits import Limits
from sojourn.sketches.bucket_array import BucketArray
from sojourn.store.epochs import StreamRecord
from waiting import PATIENCE_SECONDS


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tls-cert", "a"], "give both"),
        (["--tls-cert", "a", "--tls-key", "b"], "a, b: No such file.*PEM"),
        (["--data", "paper://shelf"], "'paper' cannot be opened"),
        (["--host", "192.0.2.1"], "choose another --host or --port"),
        (["--keep-epochs", "10ms"], "less than a second"),
        (["--keep-epochs", "a while"], "not a duration"),
        (["--silent-after", "0s"], "too short.*never"),
        (["--webhook", "alerts.example.net"], "no address.*http"),
        (["--workers", "33"], "--workers: 33 processes cannot take epochs.*1 to 32"),
        (["--workers", "-1"], "--workers: -1 processes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_served_is_refused_before_an_address_is_told(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    data = [] if "--data" in flags else ["--data", str(tmp_path / "data")]
    result = CliRunner().invoke(app, ["serve", *data, "--port", "0", *flags])
    assert isinstance(result.exception, SojournError)
    with pytest.raises(SojournError, match=words):
        raise result.exception
    assert "http" not in result.stdout


def test_tokens_of_no_unit_are_neither_listed_nor_revoked_and_nothing_is_made(tmp_path: Path) -> None:
    for command in (["list"], ["revoke", "1f2e3d4c"]):
        with pytest.raises(UsageError, match="no query unit's data"):
            printed("token", *command, "--data", str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()
    token = printed("token", "create", "--role", "viewer", "--data", str(tmp_path / "new")).strip()
    (listed,) = json.loads(printed("token", "list", "--data", str(tmp_path / "new"), "--format", "json"))["tokens"]
    assert token.split("_")[1] == listed["id"]


def test_a_token_is_rotated_and_ends(tmp_path: Path, unit: Unit) -> None:
    data = ["--data", str(tmp_path / "data")]
    printed(
        "token", "create", "--role", "viewer", "--tag", "east", "--expires", "90d", *data, "-w", str(tmp_path / "one")
    )
    (listed,) = [
        one for one in json.loads(printed("token", "list", *data, "--format", "json"))["tokens"] if one["tags"]
    ]
    assert listed["expires_ns"] > listed["created_ns"]
    printed("token", "rotate", listed["id"], "--grace", "0s", *data, "-w", str(tmp_path / "two"))
    for file, words in (("one", "expired at .*sojourn token rotate"), ("two", "needs the role admin")):
        with pytest.raises(SojournError, match=words):
            printed("audit", "--server", unit.url, "--token-file", str(tmp_path / file))
    shown = printed("audit", "--server", unit.url, "--token", unit.tokens["admin"], "--about", listed["id"])
    assert f"rotated token {listed['id']}" in shown
    for wrong in (["--expires", "0s"], ["--expires", "soon"], ["--tag", "a/b"]):
        with pytest.raises(UsageError):
            printed("token", "create", "--role", "viewer", *wrong, *data)


def test_nodes_are_listed_with_their_metrics_however_many_there_are(tmp_path: Path) -> None:
    """One request: a request for each would meet the limit of requests."""
    running = running_unit(tmp_path / "data", Limits(burst=5, requests_per_second=0.001))
    unit = next(running)
    for i in range(40):
        for metric in ("disk_io", "cpu"):
            unit.store.announce(StreamRecord(f"node{i:02}", metric, metric, "operations", "process"))
    text = printed("nodes", "--server", unit.url, "--token", unit.tokens["viewer"], "--format", "json")
    nodes = json.loads(text)["nodes"]
    assert [node["name"] for node in nodes] == [f"node{i:02}" for i in range(40)]
    assert all(node["metrics"] == ["cpu", "disk_io"] for node in nodes)
    next(running, None)


def test_a_node_is_shown_in_words_and_set(unit: Unit) -> None:
    here = ["--server", unit.url, "--token", unit.tokens["admin"]]
    assert (
        len(printed("nodes", "groups", *here).splitlines()) == len(printed("nodes", "events", *here).splitlines()) == 1
    )
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add([make_epoch(3, time_ns=10**18)])
    printed("nodes", "tag", "alpha", "east", *here)
    printed("nodes", "set", "alpha", "--silent-after", "2h", *here)
    shown = printed("nodes", "show", "alpha", *here).splitlines()
    assert shown[0].startswith("alpha: present, last heard of ")
    assert shown[1].endswith("tags: east")
    assert shown[2].strip() == "its agent has said nothing of itself: it has none, or one of an earlier version"
    assert shown[3].strip() == "may be silent for 2 h"
    assert shown[4].strip().endswith("1 of 1,000 streams, 2 of 1,000,000 keys")
    assert "disk_io (operations of each process), epochs to 3, not recorded now" in shown[5]
    assert json.loads(printed("nodes", "show", "alpha", *here, "--format", "json"))["settings"]["silent_after_ns"]
    assert "east" in printed("nodes", "groups", *here)
    printed("nodes", "set", "alpha", "--silent-after", "never", *here)
    assert "may be silent for ever" in printed("nodes", "show", "alpha", *here)
    assert len(printed("nodes", "--silent", *here).splitlines()) == 1, "there is none but the title"
    with pytest.raises(SojournError, match="there is no node alpah; sojourn nodes lists"):
        printed("nodes", "show", "alpah", *here)
    printed("nodes", "set", "alpha", "--quota-bytes", "2MB", "--quota-streams", "none", *here)
    assert "of 1.91 MiB sent today, 1 streams" in printed("nodes", "show", "alpha", *here)
    for wrong, words in (("--quota-keys=-3", "no quota"), ("--quota-keys=0", "no quota"), ("--quota-bytes=x", "not")):
        with pytest.raises(UsageError, match=words):
            printed("nodes", "set", "alpha", wrong, *here)
    with pytest.raises(UsageError, match="nothing to set"):
        printed("nodes", "set", "alpha", *here)
    with pytest.raises(UsageError, match="too short"):
        printed("nodes", "set", "alpha", "--silent-after", "1ms", *here)
    with pytest.raises(UsageError, match="as a table or as JSON"):
        printed("nodes", "show", "alpha", *here, "--format", "csv")


def test_an_answer_in_json_has_the_names_that_programs_expect(unit: Unit) -> None:
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add([make_epoch(i, time_ns=10**18 + i) for i in range(3)])
    here = ["--server", unit.url, "--token", unit.tokens["viewer"], "--metric", "disk_io", "--node", "alpha"]
    answer = json.loads(printed("query", *here, "--from", "1000000000", "--stored", "--format", "json"))
    expected = ["value", "low", "high", "unit", "samples", "method", "epochs", "live", "covered"]
    assert list(answer)[: len(expected)] == expected
    assert (answer["value"], answer["samples"], answer["epochs"], answer["live"]) == (21, 6, 3, False)


def test_the_default_statistic_and_the_units_follow_the_metric(unit: Unit) -> None:
    """Samples of memory are not added up, and nobody reads nanoseconds; of what is exact, bounds say so."""
    unit.store.announce(StreamRecord("alpha", "disk", "memory", "bytes", "process"))  # as earlier agents announce it
    unit.store.announce(StreamRecord("alpha", "load", "load", "ns", "node", "samples"))  # a plug-in's
    epochs = [make_epoch(i, time_ns=10**18 + i, values=(2048, 6144)) for i in range(3)]
    unit.store.add([*epochs, *(replace(epoch, stream="load") for epoch in epochs)])
    here = ["query", "--server", unit.url, "--token", unit.tokens["viewer"], "--node", "alpha"]
    asked = ["--from", "1000000000", "--stored", "--metric"]
    for metric, stat, value, shown in (("memory", "mean", 4096, "4.00 KiB"), ("load", "mean", 4096, "4.10 µs")):
        answer = json.loads(printed(*here, *asked, metric, "--format", "json"))
        assert (answer["stat"], answer["value"]) == (stat, value)
        title, row = printed(*here, *asked, metric).splitlines()
        assert title.split()[:2] == ["instance", "mean"]
        assert shown in row
        assert row.count("exact") >= 2
    assert json.loads(printed(*here, *asked, "memory", "--stat", "sum", "--format", "json"))["value"] == 3 * 8192


def test_a_spool_is_asked_as_the_query_unit_is(unit: Unit, tmp_path: Path) -> None:
    epochs = [make_epoch(i, time_ns=10**18 + i, values=(1, 20, 300)) for i in range(3)]
    spool = Spool(tmp_path / "spool", limit_bytes=1 << 20)
    for epoch in epochs:
        spool.put(epoch)
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    unit.store.add(epochs)
    what = ["--metric", "disk_io", "--from", "1000000000", "--stored", "--format", "json"]
    there = ["--server", unit.url, "--token", unit.tokens["viewer"], "--node", "alpha"]
    groups = ["--all"], ["--instance", "p*", "--group", "pattern"], ["--group", "name"]
    for asked in (["--top", "2"], ["--instance", "p[1]"], ["--instance", "p[1]", "--method", "literal"], [], *groups):
        assert printed("query", "--spool", str(spool.directory), *what, *asked) == printed(
            "query", *there, *what, *asked
        )
    with pytest.raises(UsageError, match="it holds disk"):
        printed("query", "--spool", str(spool.directory), *what, "--stream", "cpu")


def test_names_are_shown_as_they_are_whatever_they_look_like(unit: Unit) -> None:
    """Rich reads brackets as markup and colons as pictures; a name is neither."""
    names = ("[/b]x", "[red]y[/red]", ":bug:")
    epoch = make_epoch(time_ns=10**18)
    keys = tuple(ProcessKey(name, number) for number, name in enumerate(names))
    unit.store.announce(StreamRecord("alpha", "disk", "disk_io", "operations", "process"))
    for number, key in enumerate(keys):
        sketch = BucketArray(PARAMETERS)
        sketch.record(key_id(key), 5, 10**18 + number)
        unit.store.add([replace(epoch, sequence=number, sketch=sketch, keys=(key,))])
    here = ["--server", unit.url, "--token", unit.tokens["viewer"], "--metric", "disk_io", "--node", "alpha"]
    shown = printed("query", *here, "--from", "1000000000", "--stored", "--top", "5")
    assert all(str(key) in shown for key in keys)
    with pytest.raises(InputError, match=r"\[/b\]x\[0\]"):
        printed("query", *here, "--from", "1000000000", "--stored", "--instance", "[/b]x[7]")


@pytest.fixture
def asked(unit: Unit) -> list[str]:
    """A query about two nodes with three processes each."""
    for node in ("alpha", "beta"):
        unit.store.announce(StreamRecord(node, "disk", "disk_io", "operations", "process"))
        unit.store.add([make_epoch(i, node=node, time_ns=10**18 + i, values=(1, 20, 300)) for i in range(3)])
    here = ["--server", unit.url, "--token", unit.tokens["viewer"], "--metric", "disk_io", "--stored"]
    return ["query", *here, "--from", "1000000000", "--node", "alpha"]


def test_every_instance_of_several_nodes_is_listed_with_its_node(asked: list[str]) -> None:
    title, *rows = printed(*asked, "--node", "beta", "--all").splitlines()
    assert title.split()[:3] == ["node", "instance", "sum"]
    assert sorted(row.split()[:2] for row in rows) == [
        [node, f"p[{i}]"] for node in ("alpha", "beta") for i in range(3)
    ]
    assert [row.split()[1] for row in rows[:2]] == ["p[2]", "p[2]"]
    title, *rows = printed(*asked, "--instance", "p*", "--sort", "samples", "--columns", "instance,low").splitlines()
    assert (title.split(), len(rows)) == (["instance", "95", "%", "low"], 3)
    title, *rows = printed(*asked, "--instance", "p*", "--format", "csv").splitlines()
    assert title == "value,low,high,unit,samples,method,epochs,live,stat,instance,reason,node,members"
    assert [row.split(",")[9] for row in rows] == ["p[2]", "p[1]", "p[0]"]
    (group,) = json.loads(printed(*asked, "--group", "name", "--format", "json"))
    assert (group["instance"], group["members"], group["node"]) == ("p[*]", 3, "alpha")
    assert "members" in printed(*asked, "--group", "name").splitlines()[0]


def test_an_instance_that_nobody_has_seen_is_an_error_that_names_similar_ones(asked: list[str]) -> None:
    for name in ("p", "p[7]"):
        with pytest.raises(InputError, match=rf"nobody has seen '{re.escape(name)}' in the range; seen.*p\[0\]"):
            printed(*asked, "--instance", name)
    with pytest.raises(InputError, match="--all lists every instance"):
        printed(*asked, "--instance", "nobody*")
    result = CliRunner().invoke(app, [*asked, "--instance", "p[7]", "--format", "json"])
    assert json.loads(result.stdout)["reason"] == "unknown instance"
    assert isinstance(result.exception, InputError)
    with pytest.raises(UsageError, match="every instance or some"):
        printed(*asked, "--instance", "p*", "--all")


def test_nodes_are_tagged_one_tag_at_a_time_and_listed_and_asked_by_tag(unit: Unit, asked: list[str]) -> None:
    admin = ["--server", unit.url, "--token", unit.tokens["admin"]]
    before = {node.name: node.last_seen_ns for node in unit.store.nodes()}
    assert printed("nodes", "tag", "alpha", "west", "lab", *admin) == "lab\nwest\n"
    assert printed("nodes", "tag", "alpha", "east", *admin) == "east\nlab\nwest\n"
    assert printed("nodes", "tag", "alpha", "west", "never", "--remove", *admin) == "east\nlab\n"
    assert printed("nodes", "tag", "beta", "east", *admin) == "east\n"
    assert {node.name: node.last_seen_ns for node in unit.store.nodes()} == before  # being tagged is no sign of life
    listed = json.loads(printed("nodes", "--tag", "lab", *admin, "--format", "json"))["nodes"]
    assert [(node["name"], node["tags"]) for node in listed] == [("alpha", ["east", "lab"])]
    by_tag = [word for word in asked if word not in ("--node", "alpha")]
    assert json.loads(printed(*by_tag, "--tag", "east", "--format", "json"))["value"] == 2 * 963
    with pytest.raises(SojournError, match="needs the role admin"):
        printed("nodes", "tag", "alpha", "x", "--server", unit.url, "--token", unit.tokens["viewer"])
    with pytest.raises(SojournError, match="a name has"):
        printed("nodes", "tag", "alpha", "a/b", *admin)
    printed("nodes", "tag", "alpha", *(f"t{i}" for i in range(98)), *admin)
    with pytest.raises(SojournError, match="101 tags; keep to 100"):
        printed("nodes", "tag", "alpha", "one", *admin)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "nodes or one tag"),
        (["--node", "a", "--tag", "b"], "nodes or one tag"),
        (["--node", "a", "--from", "now", "--to", "-5m"], "ends before it begins"),
        (["--node", "a", "--from", "yesterday"], "no point in time"),
        (["--node", "a", "--server", "127.0.0.1:80"], "no address of a server"),
        (["--spool", "nowhere"], "there is no spool"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_question_that_cannot_be_asked_is_a_wrong_usage(flags: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        printed("query", "--metric", "cpu", "--token", "t", *flags)


@pytest.mark.parametrize("name", [".", "..", "a/b"])
def test_a_node_that_would_not_fit_into_a_path_gets_no_token(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a node"):
        printed("token", "create", "--role", "node", "--node", name, "--data", str(tmp_path / "data"))


def test_tokens_are_read_from_files_everywhere(unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(unit.tokens["viewer"] + "\n")
    where = ["--server", unit.url, "--format", "json"]
    assert json.loads(printed("nodes", *where, "--token-file", str(file))) == {"nodes": []}
    assert json.loads(printed("sink", "list", *where, "--token-file", str(file))) == {"collections": []}
    monkeypatch.setenv("SOJOURN_TOKEN_FILE", str(file))
    assert json.loads(printed("nodes", *where)) == {"nodes": []}
    for text, words in (("", "no token in it"), ("a\nb", "no token in it"), ("ü", "not a token")):
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            printed("nodes", *where)
    with pytest.raises(UsageError, match="No such file"):
        printed("nodes", *where, "--token-file", str(tmp_path / "none"))


def test_a_token_is_written_where_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "node.token"
    file.write_text("what was there")
    file.chmod(0o644)
    create = ["token", "create", "--role", "node", "--node", "alpha", "--data", str(tmp_path / "data")]
    assert printed(*create, "-w", str(file)) == ""
    assert file.read_text().startswith("sojourn_")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_unit_with_a_ca_of_its_own_is_asked_with_that_ca(tmp_path: Path) -> None:
    certificate, key = tmp_path / "unit.pem", tmp_path / "unit.key"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=unit"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*request, *names], check=True, capture_output=True)
    for unit in running_unit(tmp_path / "data", LIMITS, certificate=certificate, private_key=key):
        where = ["--server", unit.url.replace("http:", "https:"), "--token", unit.tokens["viewer"], "--format", "json"]
        with pytest.raises(SojournError, match=r"(?i)certificate"):
            printed("nodes", *where)
        assert json.loads(printed("nodes", *where, "--ca-file", str(certificate))) == {"nodes": []}
        with pytest.raises(UsageError, match="no certificate in it"):
            printed("nodes", *where, "--ca-file", str(key))


def test_the_first_admins_token_is_in_a_file_and_nowhere_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    command = [sys.executable, "-m", "sojourn.cli.main", "serve", "--data", str(data), "--port", "0"]
    for start in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
            assert serving.stdout is not None
            url = serving.stdout.readline().strip()
            file = data / "admin-token"
            token = file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{url}/api/v1/nodes", headers=headers, timeout=PATIENCE_SECONDS).status_code == 200
            assert {path.stat().st_mode & 0o777 for path in data.iterdir()} == {0o600}
            serving.terminate()
            out, errors = serving.communicate(timeout=PATIENCE_SECONDS)
        assert token.split("_", 2)[2] not in out + errors
        assert (f"the first admin's token is in {file}" in errors) == (start == 0)

"""Weight policies: the first rule that matches, canonical texts, errors that name the rule, weights that travel."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.arrays import PacketBatch
from sojourn.core.errors import InputError, MismatchError, ParameterError, UsageError, WireError
from sojourn.core.keys import DestinationKey, FlowKey, HostPairKey, VlanFlowKey, key_id
from sojourn.epochs.epoch import Epoch
from sojourn.epochs.wire import decode, encode
from sojourn.sketches import weights as weights_module
from sojourn.sketches.lds import Lds, LdsParameters
from sojourn.sketches.weights import MAX_RULES, MAX_TEXT, FlowWeights, WeightPolicy, WeightRule

POLICY = """
[[rule]]
source = "10.0.0.0/8"
port = 5060
protocol = "udp"
weight = 40

[[rule]]
destination = "2001:db8::/32"
weight = 7

[[rule]]
destination_port = "80-443"
weight = 3
"""


def flow(source: str, source_port: int, destination: str, destination_port: int, protocol: int = 17) -> FlowKey:
    return FlowKey(ip_address(source), source_port, ip_address(destination), destination_port, protocol)


def test_the_first_rule_that_matches_gives_the_weight() -> None:
    keys = [
        flow("10.1.2.3", 5060, "192.0.2.1", 443),
        flow("10.1.2.3", 5060, "192.0.2.1", 443, protocol=6),
        flow("10.1.2.3", 9, "192.0.2.1", 5060),
        flow("11.1.2.3", 5060, "192.0.2.1", 9),
        flow("fe80::1", 1, "2001:db8:1::2", 443),
        flow("fe80::1", 1, "2001:db9:1::2", 443),
        flow("10.1.2.3", 443, "192.0.2.1", 444),
    ]
    assert WeightPolicy.from_text(POLICY).weigh(keys).tolist() == [40, 3, 40, 1, 7, 3, 1]


def test_a_rule_about_what_a_key_leaves_open_does_not_match() -> None:
    pair = HostPairKey(IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"))
    wide, narrow = (DestinationKey(ip_network(net)) for net in ("10.0.0.0/8", "10.2.0.0/16"))
    tagged = VlanFlowKey((5,), flow("10.0.0.1", 1, "10.0.0.2", 53))
    by_port = WeightPolicy.from_text("[[rule]]\nport = 53\nweight = 2\n")
    assert by_port.weigh([pair, wide, tagged]).tolist() == [1, 1, 2]
    by_net = WeightPolicy.from_text('[[rule]]\ndestination = "10.2.0.0/15"\nweight = 2\n')
    assert by_net.weigh([wide, narrow, pair, tagged]).tolist() == [1, 2, 1, 1]
    assert WeightPolicy.from_text("[[rule]]\nweight = 9\n").weigh([pair, wide, tagged]).tolist() == [9, 9, 9]


IPV4 = st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0", "10.1.2.2/31"]).map(ip_network)
IPV6 = st.sampled_from(["::/0", "2001:db8::/33", "2001:db8::1/128"]).map(ip_network)
PORT_RANGES = st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda p: (min(p), max(p)))


@st.composite
def rules(draw):
    net = st.none() | draw(st.sampled_from([IPV4, IPV6]))
    return WeightRule(
        weight=draw(st.integers(1, 1 << 20)),
        source=draw(net),
        destination=draw(net),
        port=draw(PORT_RANGES),
        source_port=draw(PORT_RANGES),
        destination_port=draw(PORT_RANGES),
        protocol=draw(st.none() | st.sampled_from([6, 17, 200])),
    )


@st.composite
def flows(draw):
    hosts = draw(
        st.sampled_from(
            [
                [IPv4Address(a) for a in ("10.1.2.3", "10.1.2.2", "10.9.0.1", "192.0.2.1")],
                [IPv6Address(a) for a in ("2001:db8::1", "2001:db8:8000::1", "::1")],
            ]
        )
    )
    ends = [
        draw(st.sampled_from(hosts)),
        draw(st.integers(0, 6)),
        draw(st.sampled_from(hosts)),
        draw(st.integers(0, 6)),
    ]
    return FlowKey(*ends, draw(st.sampled_from([6, 17, 200])))


def matches(rule: WeightRule, key: FlowKey) -> bool:
    """The model: what the rule says, in plain Python."""

    def within(ports, *values: int) -> bool:
        return ports is None or any(ports[0] <= value <= ports[1] for value in values)

    nets = ((rule.source, key.src_ip), (rule.destination, key.dest_ip))
    return (
        all(net is None or (net.version == ip.version and ip in net) for net, ip in nets)
        and within(rule.port, key.src_port, key.dest_port)
        and within(rule.source_port, key.src_port)
        and within(rule.destination_port, key.dest_port)
        and rule.protocol in (None, key.protocol)
    )


@given(st.lists(rules(), max_size=5), st.lists(flows(), max_size=8))
def test_the_kernel_equals_its_model(chosen, keys) -> None:
    policy = WeightPolicy(tuple(chosen))
    expected = [next((rule.weight for rule in chosen if matches(rule, key)), 1) for key in keys]
    assert policy.weigh(keys).tolist() == expected


@given(st.lists(rules(), max_size=5))
def test_a_policy_and_its_text_are_the_same(chosen) -> None:
    policy = WeightPolicy(tuple(chosen))
    assert WeightPolicy.from_text(policy.to_text()) == policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]]\nweight = 2\n[[rule]]\nweight = 0\n", "p.toml, rule 2: weight is 0; give a whole number in 1 …"),
        ("[[rule]]\nport = 1\n", "rule 1: weight is missing"),
        ("[[rule]]\nweight = true\n", "rule 1: weight is True"),
        ('[[rule]]\nsource = "10.0.0.1/8"\nweight = 2\n', "rule 1: source '10.0.0.1/8' is no prefix"),
        ("[[rule]]\nsource = 7\nweight = 2\n", "rule 1: source '7' is no prefix"),
        ('[[rule]]\nport = "9-1"\nweight = 2\n', "rule 1: port is 9-1"),
        ("[[rule]]\nport = 65536\nweight = 2\n", "rule 1: port is 65536"),
        ('[[rule]]\nprotocol = "tpc"\nweight = 2\n', "rule 1: protocol is tpc; use icmp, tcp, udp"),
        ("[[rule]]\ncolour = 1\nweight = 2\n", "rule 1: there is no field 'colour'; use source, destination"),
        ('[[rule]]\nsource = "::/0"\ndestination = "10.0.0.0/8"\nweight = 2\n', "different IP versions"),
        ("[[rules]]\nweight = 2\n", "'rules' is no list of rules; write [[rule]] tables"),
        ("rule = 1\n", "'rule' is no list of rules"),
        ("rule = [1]\n", "rule 1: this is no table"),
        ("[[rule]]\nweight 2\n", "not TOML: Expected '=' after a key in a key/value pair (at line 2"),
        ("rule = " + "[" * 30_000, "not TOML"),
        ("[[rule]]\nweight = " + "9" * 5000, "not TOML"),
        ("[[rule]]\nweight = 0x" + "f" * 5000, "rule 1: weight is too large"),
        ("[[rule]]\nport = 0x" + "f" * 5000 + "\nweight = 1", "rule 1: port is too large"),
        ("[[rule]]\nprotocol = 2020-01-01\nweight = 1", "rule 1: protocol is 2020-01-01"),
        ("#" * (MAX_TEXT + 1), "characters; use at most"),
        ("[[rule]]\nweight = 1\n" * (MAX_RULES + 1), "257 rules; use at most 256"),
    ],
)
def test_what_is_wrong_is_said_with_the_rule(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        WeightPolicy.from_text(text, where="p.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("p.toml")
    assert "\n" not in str(caught.value)


FIELDS = st.sampled_from(
    ["source", "destination", "port", "source_port", "protocol", "weight", "x", "[[rule]]", "rule"]
)
VALUES = st.sampled_from(
    ['"10.0.0.0/8"', '"::/0"', '"1-2"', "-1", "1", "1.5", "true", "[]", "{}", '"udp"', "inf", '""', "[1, {a=2}]"]
)


@given(st.lists(st.tuples(FIELDS, VALUES | st.text(max_size=5)), max_size=6), st.text(max_size=20))
def test_any_text_is_a_policy_or_an_input_error(lines, rest) -> None:
    text = "[[rule]]\n" + "\n".join(f"{name} = {value}" for name, value in lines) + rest
    try:
        policy = WeightPolicy.from_text(text)
    except InputError:
        return
    assert WeightPolicy.from_text(policy.to_text()) == policy


def test_each_flow_is_weighed_once_and_a_full_table_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "MAX_FLOWS", 6)
    weights, asked = FlowWeights({}), []
    batches = [np.array(ids, np.uint64) for ids in ([1, 2, 1, 3], [3, 2, 4], [5, 1, 6, 7], [2, 7])]
    for ids in batches:
        weights.cover(ids, lambda rows, ids=ids: asked.append(ids[rows].tolist()) or ids[rows].astype(np.int64) * 10)
        assert weights.of(ids).tolist() == (ids * 10).tolist()
    assert [sorted(ids) for ids in asked] == [[1, 2, 3], [4], [1, 5, 6, 7], [2]]


def test_many_flows_keep_their_weights() -> None:
    random = np.random.default_rng(1)
    ids = np.unique(random.integers(0, 2**64, 50_000, dtype=np.uint64))
    given_weights = random.integers(1, 1000, len(ids))
    weights = FlowWeights({})
    for part in np.array_split(np.arange(len(ids)), 7):
        weights.learn(ids[part], given_weights[part])
    order = random.permutation(len(ids))
    assert np.array_equal(weights.of(ids[order]), given_weights[order])
    assert not len(weights.unknown(ids))
    assert weights.largest == given_weights.max()


def weighted_sketch(text: str) -> tuple[Lds, list[FlowKey]]:
    keys = [flow("10.0.0.1", port, "192.0.2.1", 5060) for port in range(5)]
    ids = [key_id(key) for key in keys]
    parameters = LdsParameters(rows=2, columns=8, weights=WeightPolicy.from_text(text).to_text())
    sketch = Lds(parameters, parameters.policy.weights_of(ids, keys))
    sketch.record_batch(PacketBatch.of(ids, range(5), range(5)))
    return sketch, keys


def test_the_policy_travels_with_the_epoch_and_weights_stay_with_a_copy() -> None:
    sketch, keys = weighted_sketch(POLICY)
    assert sketch.column("count").sum() == 2 * 5 * 40
    epoch = Epoch("here", "flows", 0, sketch, tuple(keys))
    assert epoch.sketch.weights is sketch.weights
    received = decode(encode(epoch))
    assert received.parameters == sketch.parameters
    assert received.parameters.policy.weigh(keys).tolist() == [40] * 5


def test_points_with_different_policies_are_told_so_on_one_line() -> None:
    sketches = [weighted_sketch(text)[0] for text in (POLICY, "")]
    with pytest.raises(MismatchError, match=r"weights \[\[rule\]\] source = .* and \(none\)") as caught:
        sketches[0].merge(sketches[1])
    assert "\n" not in str(caught.value)


def test_a_policy_without_weights_cannot_record() -> None:
    sketch, _ = weighted_sketch(POLICY)
    with pytest.raises(UsageError, match="flows are weighted"):
        Lds(sketch.parameters).record(1, 1, 1)


def test_parameters_refuse_a_policy_that_does_not_fit_or_is_not_canonical() -> None:
    text = WeightPolicy.from_text("[[rule]]\nweight = 300\n").to_text()
    with pytest.raises(ParameterError, match="weight 300 does not fit a count limit of 255"):
        LdsParameters(rows=1, columns=4, count_bits=8, weights=text)
    with pytest.raises(ParameterError, match="canonical"):
        LdsParameters(rows=1, columns=4, weights="[[rule]]\n\nweight = 3\n")
    with pytest.raises(WireError, match="weights is"):
        LdsParameters.from_mapping({"R": 1, "C": 4, "weights": "[[rule]]\nweight = -1\n"})

"""The cases: what a user types, by a name that stays when options are renamed.

The first part of a name is the kind of answer, the second the sketch or method, the third the data. All commands of a
case run in one folder of its own; the answer is what the last one prints with ``--format json``.
"""

from __future__ import annotations

__all__ = ["CASES", "JOINT", "STORED", "needs_fleet"]

SEGMENT = "data/two-point/ingress.pcap.gz data/two-point/egress.pcap.gz"
WORLD = "world/sender.pcap world/receiver.pcap"
# One direction, so that both files hold the same flows and `record` needs no clock.
ONE_WAY = "src net 10.81.0.0/16"
CAPTURES = "data/captures"
INGRESS = "data/two-point/ingress.pcap.gz"
N100 = "data/collection/n100_center_20s"
MAPS = "data/topologies"
FLEET_TIME = "--stored --from 1700000000 --to 1700000120"
HALF_TIME = "--stored --from 1700000025 --to 1700000072.5"
PROCESS = "'proc9[9]'"
FLOW = "'10.3.0.5:40005 > 10.4.0.1:1883 tcp'"
DOWNSTREAM = "'10.81.0.2:44244 > 10.82.0.2:5202 udp'"


def _two_step(record: str, estimate: str = "", *, world: bool = True) -> tuple[str, ...]:
    """`record` at both points, then `estimate`."""
    sender, receiver = (WORLD if world else SEGMENT).split()
    only = "" if world else ONE_WAY
    return (
        f"record {sender} -w sender.epochs --node sender {record} {only}",
        f"record {receiver} -w receiver.epochs --node receiver {record} {only}",
        f"estimate sender.epochs receiver.epochs {estimate}",
    )


MEASURE = {
    "exact/two-point": f"measure {SEGMENT} --sketch exact",
    "exact/two-point-reverse": f"measure {SEGMENT} --sketch exact --reverse",
    "exact/two-point-hosts": f"measure {SEGMENT} --sketch exact --key host-pair",
    "exact/two-point-filter": f"measure {SEGMENT} --sketch exact tcp port 1883",
    "exact/two-point-offset": f"measure {SEGMENT} --sketch exact --clock offset=3ms",
    "exact/two-point-prefix": f"measure {SEGMENT} --sketch exact --key prefix/24 --clock none --limit 5",
    "exact/world": f"measure {WORLD} --sketch exact",
    "auto/two-point": f"measure {SEGMENT} --truth",
    "auto/two-point-64k": f"measure {SEGMENT} --memory 64KB --truth",
    "auto/two-point-intervals": f"measure {SEGMENT} --memory 256KB --interval 1s",
    "auto/two-point-markers": f"measure {SEGMENT} --memory 256KB --interval 2s --markers --truth",
    "auto/two-point-error": f"measure {SEGMENT} --error 20%",
    "auto/world": f"measure {WORLD} --sketch auto",
    "auto/world-128k": f"measure {WORLD} --memory 128KB --truth",
    "auto/world-16k": f"measure {WORLD} --memory 16KB --truth --limit 50",
    "auto/world-error": f"measure {WORLD} --error 20% --confidence 80%",
    "lds-joint/two-point": f"measure {SEGMENT} --sketch lds --memory 64KB --truth",
    "lds-joint/two-point-intervals": f"measure {SEGMENT} --sketch lds --memory 64KB --interval 1s",
    "lds-joint/world": f"measure {WORLD} --sketch lds --memory 128KB --truth",
    "lds-joint/world-error": f"measure {WORLD} --sketch lds --error 30% --confidence 70%",
    "lds-literal/two-point": f"measure {SEGMENT} --sketch lds --method literal --memory 64KB --truth",
    "lds-literal/world": f"measure {WORLD} --sketch lds --method literal --memory 256KB --truth",
    "lds-literal/world-parameters": f"measure {WORLD} --sketch lds --method literal -p columns=999 -p shares=1",
    "lds-literal/world-intervals": f"measure {WORLD} --sketch lds --method literal --interval 2500ms",
    "colate-joint/two-point": f"measure {SEGMENT} --sketch colate --memory 256KB --truth",
    "colate-joint/world": f"measure {WORLD} --sketch colate --memory 128KB --truth",
    "colate-joint/world-error": f"measure {WORLD} --sketch colate --error 50% --confidence 60%",
    "colate-literal/two-point": f"measure {SEGMENT} --sketch colate --method literal --memory 64KB --truth",
    "colate-literal/world": f"measure {WORLD} --sketch colate --method literal --memory 256KB --truth",
    "lda/two-point": f"measure {SEGMENT} --sketch lda --memory 4KB --truth",
    "lda/two-point-intervals": f"measure {SEGMENT} --sketch lda --memory 16KB --interval 1s --markers",
    "lda/world": f"measure {WORLD} --sketch lda --truth",
    "sample/two-point": f"measure {SEGMENT} --sketch sample --memory 64KB --truth",
    "sample/world": f"measure {WORLD} --sketch sample --memory 128KB --truth",
    "sample/world-error": f"measure {WORLD} --sketch sample --error 10%",
}

ESTIMATE = {
    "auto/two-point": _two_step("", world=False),
    "auto/two-point-offset": _two_step("--memory 128KB --salt 5", "--clock offset=2ms", world=False),
    "auto/two-point-one-flow": _two_step("--no-keys", f"--flow {DOWNSTREAM}", world=False),
    "auto/world": _two_step("--memory 256KB --flows 240 --loss 0.03"),
    "auto/world-intervals": _two_step("--memory 256KB --flows 240 --interval 2s", "--interval 2s"),
    "auto/world-heavy": _two_step("--memory 256KB --flows 240", "--heavy 1%"),
    "lds-joint/world": _two_step("--sketch lds --memory 128KB --flows 240"),
    "lds-joint/world-weights": _two_step("--sketch lds --memory 128KB --flows 240 --weights world/rules.toml"),
    "lds-literal/two-point": _two_step("--sketch lds --method literal", "--method literal", world=False),
    "lds-literal/world": _two_step("--sketch lds --method literal --flows 240", "--method literal"),
    "colate-joint/world": (
        "flows world/sender.pcap --format json -w sizes.json",
        *_two_step("--sketch colate --memory 256KB --flows 240", "--sizes sizes.json"),
    ),
    "colate-literal/world": (
        "flows world/sender.pcap --format json -w sizes.json",
        *_two_step("--sketch colate --flows 240", "--sizes sizes.json --method literal"),
    ),
    "lda/world": _two_step("--sketch lda --memory 16KB", "--clock none"),
    "sample/two-point": _two_step("--sketch sample --memory 128KB", world=False),
    "sample/world": _two_step("--sketch sample --memory 128KB --flows 240"),
}

RTT = {
    "summary/two-point": f"rtt {INGRESS}",
    "summary/two-point-filter": f"rtt {INGRESS} tcp port 1883",
    "summary/tls": f"rtt {CAPTURES}/pcpp-tls2.pcap",
    "summary/sll": f"rtt {CAPTURES}/pcpp-sll.pcap",
    "summary/echo": f"rtt {CAPTURES}/zeek-echo-connections-82k.pcap.gz --limit 100",
    "summary/timestamps": f"rtt {CAPTURES}/zeek-tcp-timestamps-snap96.pcap -v",
    "seq/timestamps": f"rtt {CAPTURES}/zeek-tcp-timestamps-snap96.pcap --kind seq --max-rtt 1s",
    "inner/gre": f"rtt {CAPTURES}/zeek-gre-in-gre.pcap --inner",
    "samples/loopback": f"rtt {CAPTURES}/suri-null-loopback.pcap --samples",
    "samples/http": f"rtt {CAPTURES}/zeek-http-ns.pcap --samples",
    "samples/handshakes": f"rtt {INGRESS} --samples --kind handshake",
}

FLOWS = {
    "five-tuple/two-point": f"flows {INGRESS}",
    "five-tuple/echo": f"flows {CAPTURES}/zeek-echo-connections-82k.pcap.gz",
    "five-tuple/sll": f"flows {CAPTURES}/pcpp-sll.pcap -v",
    "five-tuple/big-endian": f"flows {CAPTURES}/pcpp-ns-bigendian.pcap",
    "five-tuple/sections": f"flows {CAPTURES}/pcapng-be-test202.pcapng",
    "five-tuple/interfaces": f"flows {CAPTURES}/zeek-126if.pcapng",
    "five-tuple/fragments": f"flows {CAPTURES}/suri-ipv6-malformed-frag.pcap -v",
    "five-tuple/pppoe": f"flows {CAPTURES}/zeek-pppoe-over-qinq.pcap",
    "vlan/qinqinq": f"flows {CAPTURES}/zeek-qinqinq.pcap --key vlan+five-tuple",
    "vlan/mpls": f"flows {CAPTURES}/zeek-mixed-vlan-mpls.pcap --key vlan+five-tuple",
    "prefix/tls": f"flows {CAPTURES}/pcpp-tls2.pcap --key prefix/16,48",
    "host-pair/tls": f"flows {CAPTURES}/pcpp-tls2.pcap --key host-pair",
    "dest/loopback": f"flows {CAPTURES}/suri-null-loopback.pcap --key dest",
    "inner/gtp": f"flows {CAPTURES}/zeek-gtp1-frag.pcap --inner",
    "inner/erspan": f"flows {CAPTURES}/zeek-erspan.pcap --inner",
    "five-tuple/world": "flows world/sender.pcap udp",
}

TRACE = "tomography world/trace.csv"
TOMOGRAPHY = {
    "domo/n100": f"tomography {N100}_packets.csv.gz",
    "domo/n100-truth": f"tomography {N100}_packets.csv.gz --truth {N100}_hops.csv.gz --baselines --workers 1",
    "domo/n100-packet": f"tomography {N100}_packets.csv.gz --packet 71:3",
    "domo/world": f"{TRACE} --truth world/hops.csv --baselines",
    "domo/world-options": f"{TRACE} --window 6 --ratio 0.8 --omega 1ms --epsilon 1ms --sums own",
    "domo/world-exact-sums": f"{TRACE} --sums exact",
    "domo/world-no-sums": f"{TRACE} --sums unused",
    "lp/world": f"{TRACE} --bounds lp --cut 200",
    "lp/world-packet": f"{TRACE} --packet 17:3 --bounds lp",
    "published/world": f"{TRACE} --method published --truth world/hops.csv",
    "mnt/world": f"{TRACE} --method mnt",
    "mnt/n225": "tomography data/collection/n225_center_20s_packets.csv.gz --method mnt",
}

MPLANE = {
    "upgrade/greedy-1239": f"mplane upgrade {MAPS}/rocketfuel/1239.weights.intra --count 20",
    "upgrade/best-1755": f"mplane upgrade {MAPS}/rocketfuel/1755.weights.intra --count 6 --strategy best",
    "upgrade/random-3967": f"mplane upgrade {MAPS}/rocketfuel/3967.weights.intra --strategy random --seed 3",
    "upgrade/best-abilene": f"mplane upgrade {MAPS}/Abilene.graphml --count 4 --strategy best",
    "upgrade/greedy-cogent": f"mplane upgrade {MAPS}/Cogentco.graphml --count 12",
    "upgrade/undirected-1221": f"mplane upgrade {MAPS}/rocketfuel/1221.weights.intra --count 8 --undirected",
    "msets/abilene": f"mplane msets {MAPS}/Abilene.graphml --upgraded Denver,Houston",
    "msets/abilene-failed": f"mplane msets {MAPS}/Abilene.graphml --upgraded Denver --failed 'Chicago,New York'",
    "msets/geant": f"mplane msets {MAPS}/Geant2012.graphml --upgraded DE,FR",
}

TRAFFIC = "--flows 300 --rate 1000 --epoch 10s"
PLAN = {
    "lds/error": f"plan lds {TRAFFIC} --error 10%",
    "lds/memory": f"plan lds {TRAFFIC} --loss 1% --memory 64KB --storage 1GB",
    "lds/published": "plan lds --flows 10k --rate 20k --epoch 10s --error 5% --method published",
    "lds/capture": f"plan lds --from {INGRESS} --epoch 2s --error 20%",
    "lda/error": "plan lda --rate 500000 --epoch 1s --loss 1% --error 1%",
    "lda/memory": "plan lda --rate 20k --memory 4KB --variation 2 --confidence 90%",
    "colate/error": f"plan colate {TRAFFIC} --error 20%",
    "colate/published": f"plan colate {TRAFFIC} --error 10% --method published",
    "sample/error": f"plan sample {TRAFFIC} --loss 10% --error 10%",
    "auto/memory": f"plan auto {TRAFFIC} --loss 1% --memory 64KB",
    "iotm/error": "plan iotm --instances 10 --rate 50 --period 10min --error 5%",
    "iotm/memory": "plan iotm --instances 40 --rate 200 --period 1min --memory 200B --spreading random",
}

QUERY = {
    "node/joint": f"query --node alpha --metric disk_io {FLEET_TIME}",
    "node/mean": f"query --node alpha --metric rtt {FLEET_TIME}",
    "node/memory": f"query --node gamma --metric memory {FLEET_TIME}",
    "instance/joint": f"query --node alpha --metric disk_io --instance {PROCESS} {FLEET_TIME}",
    "instance/joint-mean": f"query --node alpha --metric memory --instance {PROCESS} --stat mean {FLEET_TIME}",
    "instance/literal": f"query --node alpha --metric disk_io --instance {PROCESS} --method literal {FLEET_TIME}",
    "instance/literal-flow": f"query --node beta --metric rtt --instance {FLOW} --method literal {HALF_TIME}",
    "instance/joint-flow": f"query --node beta --metric rtt --instance {FLOW} {HALF_TIME}",
    "instance/unknown": f"query --node alpha --metric disk_io --instance 'proc99[1]' {FLEET_TIME}",
    "top/joint": f"query --node delta --metric disk_io --top 5 {FLEET_TIME}",
    "top/literal": f"query --node delta --metric disk_io --top 20 --method literal {FLEET_TIME}",
    "top/mean": f"query --node beta --metric rtt --top 6 --stat mean {FLEET_TIME}",
    "tag/node": f"query --tag east --metric disk_io {FLEET_TIME}",
    "tag/instance": f"query --tag east --metric disk_io --instance {PROCESS} {FLEET_TIME}",
    "tag/top": f"query --tag east --metric disk_io --top 4 {FLEET_TIME}",
    "cut/whole": f"query --node alpha --metric disk_io {HALF_TIME}",
    "cut/inside": f"query --node alpha --metric disk_io --cut inside {HALF_TIME}",
    "cut/pro-rata": f"query --node alpha --metric disk_io --cut pro-rata --instance {PROCESS} {HALF_TIME}",
    "cut/empty": "query --node alpha --metric disk_io --stored --from 1600000000 --to 1600000100",
    "nodes/all": "nodes",
    "nodes/tag": "nodes --tag east",
}

_KINDS = {
    "measure": MEASURE,
    "estimate": ESTIMATE,
    "rtt": RTT,
    "flows": FLOWS,
    "tomography": TOMOGRAPHY,
    "mplane": MPLANE,
    "plan": PLAN,
    "query": QUERY,
}

CASES: dict[str, tuple[str, ...]] = {
    f"{kind}/{name}": (commands,) if isinstance(commands, str) else commands
    for kind, table in _KINDS.items()
    for name, commands in table.items()
}

# Answers that are stored beside the test: they have one right value, or follow a published algorithm step by step.
STORED = (
    "measure/exact/two-point",
    "measure/exact/two-point-reverse",
    "measure/exact/two-point-prefix",
    "measure/exact/world",
    "measure/lds-literal/world",
    "measure/colate-literal/world",
    "measure/lda/two-point-intervals",
    "estimate/lds-literal/world",
    "rtt/summary/sll",
    "rtt/summary/timestamps",
    "rtt/inner/gre",
    "rtt/samples/http",
    "rtt/samples/handshakes",
    "flows/five-tuple/two-point",
    "flows/five-tuple/fragments",
    "flows/five-tuple/interfaces",
    "flows/vlan/mpls",
    "flows/inner/gtp",
    "flows/prefix/tls",
    "tomography/domo/world",
    "tomography/domo/world-options",
    "tomography/lp/world-packet",
    "tomography/published/world",
    "tomography/mnt/world",
)

# Answers of the decoders that solve for all flows together; recorded anew whenever such a decoder is improved.
JOINT = (
    "measure/auto/world-16k",
    "measure/lds-joint/two-point",
    "measure/colate-joint/world",
    "estimate/auto/world",
)


def needs_fleet(name: str) -> bool:
    """Whether a case asks a query unit."""
    return name.startswith("query/")

"""Runs on MicroPython: replays cases through the node unit and prints epochs and local answers, as lines."""

if __name__ == "__main__":
    from cases import CASES, RTT_EVENTS
    from rtt_unit import RttUnit
    from unit import Instance, NodeUnit


def replay(case):
    size, options, rows = case
    unit = NodeUnit(size[0], size[1], **options)
    instances = {}
    for time_ns, (instance_id, value, sequence) in enumerate(rows):
        if instance_id not in instances:
            instances[instance_id] = Instance(instance_id)
        if not unit.insert(instances[instance_id], value, 1700000000000000000 + time_ns, sequence):
            break
    print("epoch", unit.snapshot("node", "disk", keys=[b"\x04abc"]).hex())
    if instances:
        print("estimate", *unit.estimate(instances[rows[0][0]]))
    else:
        print("estimate none")


def rtt():
    unit = RttUnit(
        lambda: NodeUnit(20, 5, bits=32, count_bits=16, signed=True, wrap=True, spreading="sequence", salt=9)
    )
    flows = {}
    for what, flow, number, time_ns in RTT_EVENTS:
        if flow not in flows:
            flows[flow] = Instance(flow)
        if what == "turn":
            unit.turn(number)
        elif what == "sent":
            unit.sent(flows[flow], number, time_ns)
        else:
            unit.acknowledged(flows[flow], number, time_ns)
    for epoch in unit.closing("node", "rtt"):
        print("rtt", epoch.hex())


if __name__ == "__main__":
    for case in CASES:
        replay(case)
    rtt()

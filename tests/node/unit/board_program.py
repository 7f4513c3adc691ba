"""Runs on MicroPython: a node unit whose epochs go through a broker by umqtt; prints what becomes of them, as lines."""

import time

if __name__ == "__main__":
    from board import CLIENT_ID, FIRST, LAST, PASSWORD, ROUNDS, USER
    from mqtt_unit import EpochPost
    from simple import MQTTClient
    from unit import NodeUnit


def record(unit, post, sequence):
    process = unit.instance(b"\x03\x00\x00\x00\x01work")
    for k in range(sequence + 1):
        unit.insert(process, 10, 1700000000000000000 + k)
    epoch = unit.snapshot("alpha", "disk", sequence=sequence, keys=[b"\x03\x00\x00\x00\x01work"])
    unit.reset(unit.salt + 1)
    return post.keep("disk", sequence, epoch)


def run():
    client = MQTTClient(CLIENT_ID, "broker", user=USER, password=PASSWORD)
    post = EpochPost(client, "alpha", most_kept=8)
    post.connect()
    unit = NodeUnit(20, 5, bits=32)
    post.announce("disk", "disk_io", "operations", "process")
    for sequence in range(FIRST, LAST):
        if not record(unit, post, sequence):
            print("full", sequence)
    if ROUNDS > 1:
        post.kept.insert(2, ("disk", 99, b"\xff no epoch at all"))
    for _ in range(ROUNDS):
        post.send()
        until = time.time() + 2
        before = (len(post.kept), post.why)
        while time.time() < until and (len(post.kept), post.why) == before:
            post.look()
            time.sleep(0.05)
        post.why = ""
        if not post.kept:
            break
    print("last", post.last.get("disk", "unknown"))
    print("kept", *[sequence for _, sequence, _ in post.kept])
    print("refused", post.refused)
    client.disconnect()


if __name__ == "__main__":
    run()

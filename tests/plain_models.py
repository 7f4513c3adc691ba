"""Plain-Python models of the recording kernels: ten lines each, slow, and obviously right.

A model maps a sketch's parameters and a list of rows to ``{field name: list of integers}``, before any
range check. Packets are ``(flow_id, packet_id, time_ns, size_bytes)``, measurements ``(instance_id, value,
sequence)``.
"""

from __future__ import annotations

from sojourn.core.hashing import mix64, salt_for

LOW_HALF = 0xFFFFFFFF
MASK = 2**64 - 1


def reduce_to_range(hashed: int, size: int) -> int:
    """Map the high half of a hash onto ``0 … size − 1`` by multiplication (`size` ≤ 2³²)."""
    return (hashed >> 32) * size >> 32


def bucket_of(instance_id: int, j: int, *, salt: int, size: int) -> int:
    """H(id, j) of the papers: the bucket of an instance's `j`-th hash function."""
    return reduce_to_range(mix64(instance_id ^ salt_for(j, salt)), size)


def centred(value: int, bits: int) -> int:
    """`value` modulo 2ᵇ, between −2ᵇ⁻¹ and 2ᵇ⁻¹."""
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def digest_of(p, packet_id):
    word = mix64(packet_id ^ salt_for(1 << 20, p.salt))
    word &= (1 << p.digest_bits) - 1
    return centred(word, 64)


def lda(p, packets):
    cells = p.rows * p.banks
    fields = {"sum": [0] * cells, "count": [0] * cells, "digest": [0] * cells}
    for _, packet_id, time_ns, _ in packets:
        hashed = mix64(packet_id ^ salt_for(0, p.salt))
        uniform = (hashed & LOW_HALF) / 2**32
        bank, upper = None, 0.0
        for b in reversed(range(p.banks)):
            upper = p.shares[b] if p.nested else upper + p.shares[b]
            if uniform < round(upper * 2**32) / 2**32:
                bank = b
                break
        if bank is None:
            continue
        cell = bank * p.rows + reduce_to_range(hashed, p.rows)
        fields["sum"][cell] += time_ns
        fields["count"][cell] += 1
        fields["digest"][cell] ^= digest_of(p, packet_id)
    fields["sum"] = [centred(s, p.sum_bits) for s in fields["sum"]]
    return fields


def lds(p, packets, weights=None):
    cells = p.rows * p.columns
    fields = {name: [0] * cells for name in ("sum", "count", "digest", "bytes")}
    for flow_id, packet_id, time_ns, size in packets:
        hashed = mix64(packet_id ^ salt_for(1 << 21, p.salt))
        weight = (weights or {}).get(flow_id, 1)
        for row in range(p.rows):
            turn = (row * 17 + 1) % 64
            turned = ((hashed << turn) | (hashed >> (64 - turn))) & MASK
            if (turned & LOW_HALF) >= round(p.row_shares[row] * 2**32):
                continue
            first = bucket_of(flow_id, row, salt=p.salt, size=p.columns)
            cell = row * p.columns + (first + reduce_to_range(turned, p.spread)) % p.columns
            fields["sum"][cell] += weight * time_ns
            fields["count"][cell] += weight
            fields["digest"][cell] ^= digest_of(p, packet_id)
            fields["bytes"][cell] += size
    fields["sum"] = [centred(s, p.sum_bits) for s in fields["sum"]]
    return fields


def sample(p, packets):
    """Sort everything, find the level by trying, cut: what the pool does in pieces."""
    everything = 1 << p.hash_bits
    groups = [[] for _ in range(p.groups)]
    for flow_id, packet_id, time_ns, _ in packets:
        flow = mix64(flow_id ^ salt_for(1 << 24, p.salt))
        hashed = max(1, mix64(packet_id ^ salt_for((1 << 24) + 1, p.salt)) >> (64 - p.hash_bits))
        row = (hashed, flow % (1 << p.flow_bits), time_ns % (1 << p.time_bits))
        groups[reduce_to_range(flow, p.groups)].append(row)
    level = max(c for c in range(1, p.slots + 1) if sum(min(len(g), c) for g in groups) <= p.slots)
    limits = [sorted(g)[level][0] if len(g) > level else everything for g in groups]
    kept = [sorted(row for row in g if row[0] < limit) for g, limit in zip(groups, limits, strict=True)]
    rows = [row for g in kept for row in g]
    rows += [(0, 0, 0)] * (p.slots - len(rows))
    return {
        "cut": [everything - limit for limit in limits],
        "packets": [len(g) for g in groups],
        "held": [len(g) for g in kept],
        **{name: [row[i] for row in rows] for i, name in enumerate(("hash", "flow", "time"))},
    }


def sds(p, measurements):
    cells = p.rows * p.columns
    fields = {"sum": [0] * cells, "count": [0] * cells}
    for flow_id, delay, _ in measurements:
        for row in range(p.rows):
            cell = row * p.columns + bucket_of(flow_id, row, salt=p.salt, size=p.columns)
            fields["sum"][cell] += delay
            fields["count"][cell] += 1
    return fields


def counter_vector(p, packets):
    """Coordinated choice of j only: the random one is a draw."""
    cells = p.counters * p.vectors
    fields = {"sum": [0] * cells, "count": [0] * cells, "digest": [0] * cells, "packets": [0] * p.vectors}
    for flow_id, packet_id, time_ns, _ in packets:
        hashed = mix64(packet_id ^ salt_for(1 << 21, p.salt))
        j = reduce_to_range(hashed, p.per_flow)
        vector, upper = 0, 0
        for v in reversed(range(p.vectors)):
            upper += max(1, round(p.shares[v] * 2**32))
            if (hashed & LOW_HALF) < upper:
                vector = v
                break
        target = vector * p.counters + bucket_of(flow_id, j, salt=p.salt, size=p.counters)
        place = reduce_to_range((hashed & LOW_HALF) << 32, p.resolution_ns) if p.is_dithered else 0
        fields["sum"][target] += (time_ns - p.origin_ns + place) // p.resolution_ns
        fields["count"][target] += 1
        fields["digest"][target] ^= mix64(packet_id ^ salt_for(1 << 20, p.salt)) & ((1 << p.digest_bits) - 1)
        fields["packets"][vector] += 1
    if p.wrap:
        fields["sum"] = [centred(s, p.bits) for s in fields["sum"]]
    return fields


def bucket_array(p, measurements):
    """All spreadings but the random one."""
    fields = {"sum": [0] * p.buckets, "count": [0] * p.buckets}
    steps: dict[int, int] = {}
    for instance_id, value, sequence in measurements:
        if p.spreading == "sequence":
            j = sequence % p.per_instance
        else:
            shared = mix64(instance_id ^ salt_for(1 << 22, 0)) % 64
            owner = shared if p.spreading == "hashed-steps" else instance_id
            j = steps.get(owner, 0)
            steps[owner] = (j + 1) % p.per_instance
        target = bucket_of(instance_id, j, salt=p.salt, size=p.buckets)
        fields["sum"][target] += value
        fields["count"][target] += 1
    if p.wrap:
        fields["sum"] = [centred(s, p.bits) for s in fields["sum"]]
    return fields

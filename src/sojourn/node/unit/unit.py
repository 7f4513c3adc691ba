"""The node unit for constrained nodes: one file, no dependencies, the same on CPython and MicroPython.

A bucket array (IoTm) of n buckets of b bits: insert a measurement, know when the array is full, send it as an
epoch, and answer for an instance from its counters as they are. Copy this file to a board and::

    unit = NodeUnit(20, 5, bits=16)
    process = unit.instance(key_bytes)            # hashed once
    if not unit.insert(process, 1, time_ns):      # full: nothing was recorded
        send(unit.snapshot("gateway-7", "disk"))
        unit.reset(salt=unit.salt + 1)
        unit.insert(process, 1, time_ns)

Guarantee: the same insertions give the same buckets as `sojourn.sketches.bucket_array`, and the same bytes as
`sojourn.epochs.wire`. A measurement is recorded whole or refused before anything changes.

Memory: n × (b + count bits) / 8 bytes of buckets, kept packed as they are sent; 8 bytes for each of m hash functions.
Time: one hash in 32-bit words and at most two updates; by machine code where MicroPython has an emitter.

Shahzad and Ganji, "IoTm", §II (structure), §III (local query). Round-trip times: `rtt_unit.py`.
"""

import math
from array import array

MASK = (1 << 64) - 1
HALF = (1 << 32) - 1

# XXH64's primes, and the words of the mixing function (see `sojourn.core.hashing`).
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_4 = 0x85EBCA77C2B2AE63
PRIME_5 = 0x27D4EB2F165667C5
GAMMA = 0x9E3779B97F4A7C15
MIX_WORDS = (0x21F0AAAD, 0xD35A2D97, 0, 0x9E3779B9, 0x6A09E667)
NO_SALT, FIRST_SALT = 5, 7

SPREADINGS = ("random", "sequence", "round-robin", "hashed-steps")
HASHED_STEPS = 64
STEP_FUNCTION, NUMBER_FUNCTION = 1 << 22, 1 << 23
VERSION = 1

# A place in 0 … size − 1 from two words and a salt: mix64 in three Feistel rounds, then a product's high half.
# It is text because a MicroPython without an emitter refuses a whole file that contains the decorator. Machine
# words have 32 or 64 bits and constants at most 30, hence a mask made from shifts.
PLACE = """
def place(words: ptr32, source: ptr32, salt: int, size: int) -> int:
    one = uint(1)
    mask = ((one << uint(31)) << one) - one
    left = (uint(source[0]) ^ uint(words[salt])) & mask
    right = (uint(source[1]) ^ uint(words[salt + 1])) & mask
    turn = 2
    while turn < 5:
        word = (right + uint(words[turn])) & mask
        word = ((word ^ (word >> uint(16))) * uint(words[0])) & mask
        word = ((word ^ (word >> uint(15))) * uint(words[1])) & mask
        word = left ^ word ^ (word >> uint(15))
        left = right
        right = word
        turn += 1
    count = uint(size)
    return int(((right >> uint(16)) * count + (((right & uint(65535)) * count) >> uint(16))) >> uint(16))
"""


def _compiled():  # type: ignore[no-untyped-def]
    """`PLACE` as machine code where that exists."""
    space = {"uint": int, "ptr32": array}
    try:
        exec("import micropython\n@micropython.viper" + PLACE, space)
    except (ImportError, SyntaxError, AttributeError):
        exec(PLACE, space)
    return space["place"]


_place = _compiled()  # type: ignore[no-untyped-call]


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def _round(state: int, lane: int) -> int:
    return _rotate((state + lane * PRIME_2) & MASK, 31) * PRIME_1 & MASK


def hash_bytes(data: bytes) -> int:
    """XXH64 with seed 0; big integers, so once per instance and once per epoch."""
    at, size = 0, len(data)
    state = PRIME_5
    if size >= 32:
        lanes = [(PRIME_1 + PRIME_2) & MASK, PRIME_2, 0, -PRIME_1 & MASK]
        while at + 32 <= size:
            for i in range(4):
                lanes[i] = _round(lanes[i], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        state = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
        for lane in lanes:
            state = ((state ^ _round(0, lane)) * PRIME_1 + PRIME_4) & MASK
    state = (state + size) & MASK
    while at + 8 <= size:
        state = _rotate(state ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * PRIME_1 + PRIME_4 & MASK
        at += 8
    if at + 4 <= size:
        state ^= int.from_bytes(data[at : at + 4], "little") * PRIME_1 & MASK
        state = _rotate(state, 23) * PRIME_2 + PRIME_3 & MASK
        at += 4
    while at < size:
        state = _rotate(state ^ (data[at] * PRIME_5 & MASK), 11) * PRIME_1 & MASK
        at += 1
    state = (state ^ state >> 33) * PRIME_2 & MASK
    state = (state ^ state >> 29) * PRIME_3 & MASK
    return state ^ state >> 32


def _mix64(value: int) -> int:
    left, right = value >> 32, value & HALF
    for added in MIX_WORDS[2:]:
        word = right + added & HALF
        word = (word ^ word >> 16) * MIX_WORDS[0] & HALF
        word = (word ^ word >> 15) * MIX_WORDS[1] & HALF
        left, right = right, left ^ word ^ word >> 15
    return right << 32 | left


def _salt_for(j: int, salt: int) -> int:
    return _mix64((salt + (j + 1) * GAMMA) & MASK)


def _words(value: int) -> "array[int]":
    return array("I", (value >> 32 & HALF, value & HALF))


class Packed:
    """Unsigned numbers of a fixed bit width, lowest bit first: the form in which an epoch sends them."""

    def __init__(self, length: int, bits: int) -> None:
        self.length, self.bits = length, bits
        self.data = bytearray((length * bits + 7) // 8)

    def get(self, i: int) -> int:
        at = i * self.bits
        value = 0
        for k in range((at + self.bits - 1) >> 3, (at >> 3) - 1, -1):
            value = value << 8 | self.data[k]
        return value >> (at & 7) & ((1 << self.bits) - 1)

    def put(self, i: int, value: int) -> None:
        at = i * self.bits
        shift = at & 7
        value = (value & ((1 << self.bits) - 1)) << shift
        hole = ((1 << self.bits) - 1) << shift
        for k in range(at >> 3, ((at + self.bits - 1) >> 3) + 1):
            self.data[k] = self.data[k] & ~hole & 255 | value & 255
            value >>= 8
            hole >>= 8

    def clear(self) -> None:
        for k in range(len(self.data)):
            self.data[k] = 0


def cbor(item: object) -> bytes:
    """The CBOR (RFC 8949) of what an epoch is made of; shortest heads, definite lengths."""
    if item is None or item is True or item is False:
        return b"\xf6" if item is None else b"\xf5" if item else b"\xf4"
    if isinstance(item, int):
        return _head(0, item) if item >= 0 else _head(1, -1 - item)
    if isinstance(item, str):
        text = item.encode()
        return _head(3, len(text)) + text
    if isinstance(item, (bytes, bytearray)):
        return _head(2, len(item)) + bytes(item)
    if isinstance(item, (list, tuple)):
        return _head(4, len(item)) + b"".join([cbor(part) for part in item])
    raise TypeError("an epoch holds no " + type(item).__name__)


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    size = 0
    while value >> (8 << size):
        size += 1
    return bytes([major << 5 | 24 + size]) + value.to_bytes(1 << size, "big")


class Instance:
    """What is measured: its id in two words, and whose turn it is among its buckets.

    Make one for each key and unit with `NodeUnit.instance` and keep it: hashing the key is the dear part.
    """

    __slots__ = ("first_number", "round", "slot", "turn", "words")

    def __init__(self, instance_id: int) -> None:
        self.words = _words(instance_id)
        self.slot = _mix64(instance_id ^ _salt_for(STEP_FUNCTION, 0)) % HASHED_STEPS
        self.turn = 0
        self.round = -1
        self.first_number = 0


class NodeUnit:
    """A bucket array; `seed` drives random spreading and is not needed to read the buckets."""

    most_buckets = 65536  # of which machine code of 32 bits finds the place

    def __init__(
        self, buckets: int, per_instance: int, *, bits: int = 16, count_bits: int = 0, signed: bool = False,
        wrap: bool = False, spreading: str = "round-robin", salt: int = 0, seed: int = 0,
    ) -> None:  # fmt: skip
        if not (
            0 < buckets <= self.most_buckets and 0 < per_instance <= 65536 and 0 < bits <= 64 and 0 <= count_bits <= 64
        ):
            raise ValueError("sizes: 1 to " + str(self.most_buckets) + " buckets, 1 to 64 bits, 0 to 64 count bits")
        if spreading not in SPREADINGS or (wrap and not signed):
            raise ValueError("spreading: one of " + ", ".join(SPREADINGS) + "; wrap needs signed")
        self.per_instance = per_instance
        self.signed, self.wrap, self.spreading = signed, wrap, spreading
        self.sums = self.packed(buckets, bits)
        self.counts = self.packed(buckets, count_bits) if count_bits else None
        self.highest = (1 << min(bits - 1 if signed else bits, 63)) - 1
        self.most = (1 << min(count_bits, 63)) - 1
        self.lowest = -(1 << (bits - 1)) if signed else 0
        self._words = array("I", MIX_WORDS + (0, 0) * (per_instance + 1))
        self._draw = _words(_mix64(seed & MASK) * GAMMA)
        step_bits = 1
        while per_instance - 1 >> step_bits:
            step_bits += 1
        self._steps = Packed(HASHED_STEPS, step_bits) if spreading == "hashed-steps" else None
        self.rounds = -1
        self.reset(salt)

    def reset(self, salt: int) -> None:
        """Forget everything and begin the next epoch; a salt of its own makes instances collide differently."""
        self.salt = salt
        for j in range(self.per_instance):
            word = _salt_for(j, salt)
            self._words[FIRST_SALT + 2 * j] = word >> 32
            self._words[FIRST_SALT + 2 * j + 1] = word & HALF
        self._odd = _salt_for(NUMBER_FUNCTION, salt) & HALF | 1
        for packed in (self.sums, self.counts, self._steps):
            if packed is not None:
                packed.clear()
        self.recorded = 0
        self.first_ns = self.last_ns = 0
        self.refused = False
        self.rounds += 1

    def instance(self, key: bytes) -> Instance:
        """The instance of a key's canonical bytes."""
        return Instance(self.hash_bytes(key))

    def hash_bytes(self, data: bytes) -> int:
        """XXH64."""
        return hash_bytes(data)

    def packed(self, length: int, bits: int) -> Packed:
        """Where numbers are kept."""
        return Packed(length, bits)

    def choice(self, number: int) -> int:
        """j by a packet's number, modulo 2³²; numbers in equal steps go round evenly, whatever the step."""
        return ((number & HALF) * self._odd & HALF) * self.per_instance >> 32

    def _turn(self, instance: Instance, sequence: int) -> int:
        """j of the paper."""
        if self.spreading == "sequence":
            return sequence % self.per_instance
        if self.spreading == "random":
            return int(_place(self._words, self._draw, NO_SALT, self.per_instance))
        if self._steps is not None:
            return self._steps.get(instance.slot)
        if instance.round != self.rounds:
            instance.round, instance.turn = self.rounds, 0
        return instance.turn

    def _take_turn(self, instance: Instance, j: int) -> None:
        following = j + 1 if j + 1 < self.per_instance else 0
        if self.spreading == "random":
            low = self._draw[1] + (GAMMA & HALF)
            self._draw[1] = low & HALF
            self._draw[0] = self._draw[0] + (GAMMA >> 32) + (low >> 32) & HALF
        elif self._steps is not None:
            self._steps.put(instance.slot, following)
        else:
            instance.turn = following

    def bucket(self, instance: Instance, j: int) -> int:
        """H(I, j): one of the instance's buckets."""
        return int(_place(self._words, instance.words, FIRST_SALT + 2 * j, self.sums.length))

    def held(self, i: int) -> int:
        """The sum in a bucket."""
        value = self.sums.get(i)
        return value - (1 << self.sums.bits) if self.signed and value >> (self.sums.bits - 1) else value

    def insert(self, instance: Instance, value: int, time_ns: int, sequence: int = 0) -> bool:
        """Record a measurement; false, and nothing changed, if a bucket has no room for it."""
        j = self._turn(instance, sequence)
        i = self.bucket(instance, j)
        total = self.held(i) + value
        count = 0 if self.counts is None else self.counts.get(i)
        too_many = self.counts is not None and count >= self.most
        if too_many or not (self.wrap or self.lowest <= total <= self.highest):
            self.refused = True
            return False
        self.sums.put(i, total)
        if self.counts is not None:
            self.counts.put(i, count + 1)
        self._take_turn(instance, j)
        self.first_ns = min(self.first_ns, time_ns) if self.recorded else time_ns
        self.last_ns = max(self.last_ns, time_ns) if self.recorded else time_ns
        self.recorded += 1
        return True

    def is_full(self, largest: int = 1) -> bool:
        """Whether a value was refused, or one up to `largest` could be: take the snapshot now."""
        places = range(self.sums.length)
        if self.counts is not None and any(self.counts.get(i) >= self.most for i in places):
            return True
        return self.refused or (not self.wrap and any(self.held(i) > self.highest - largest for i in places))

    def snapshot(
        self, node: str, stream: str, *, sequence: int | None = None, keys: "list[bytes] | None" = None
    ) -> bytes:
        """The epoch on the wire, numbered by this unit's resets unless given; `keys` are active keys' bytes."""
        settings: list[tuple[str, object, object]] = [
            ("n", self.sums.length, 0), ("m", self.per_instance, 0), ("b", self.sums.bits, 16),
            ("c", self.counts.bits if self.counts else 0, 0), ("signed", self.signed, False),
            ("wrap", self.wrap, False), ("j", self.spreading, "round-robin"), ("salt", self.salt, 0),
        ]  # fmt: skip
        pairs = [(symbol, value) for symbol, value, default in settings if value != default]
        counters = bytes(self.sums.data) + (bytes(self.counts.data) if self.counts else b"")
        frame = [self.first_ns, self.last_ns - self.first_ns] if self.recorded else None
        number = self.rounds if sequence is None else sequence
        body = _head(4, 9) + cbor("bucket_array") + _head(5, len(pairs))
        body += b"".join([cbor(symbol) + cbor(value) for symbol, value in pairs])
        body += b"".join([cbor(item) for item in (node, stream, number, frame, self.recorded, counters, keys)])
        return cbor([VERSION, body, self.hash_bytes(body) & HALF])

    def estimate(self, instance: Instance, *, counts: bool = False) -> "tuple[float, float, float]":
        """The sum (or count) of an instance by moments, with a 95 % interval: value, low, high.

        Its buckets' total less what as many buckets of others hold; the others' spread says how far that is off.
        """
        own = {self.bucket(instance, j) for j in range(self.per_instance)}
        mine, total, squares = 0, 0, 0
        for i in range(self.sums.length):
            value = self.counts.get(i) if counts and self.counts else self.held(i)
            if i in own:
                mine += value
            else:
                total += value
                squares += value * value
        owned, others = len(own), self.sums.length - len(own)
        if others < 2:
            return 0.0, -math.inf, math.inf
        variance = (squares * others - total * total) / (others * (others - 1))
        half = _student(others - 1) * math.sqrt(variance * (owned + owned * owned / others))
        sum_of = mine - owned * total / others
        return sum_of, sum_of - half, sum_of + half


def _student(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t (see `sojourn.core.estimates`)."""
    if degrees < 3:
        return 12.7062 if degrees < 2 else 4.3027
    return 1.959964 + 2.372271 / degrees + 2.822503 / degrees**2 + 2.555851 / degrees**3

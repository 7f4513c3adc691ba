"""The parameters of bucket arrays, apart from their kernels: all that a node without numpy knows of `bucket_array`.

Shahzad and Ganji, "IoTm", §II.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sojourn.sketches.parameters import Field, Kind, Parameters, Table, choice, flag, integer

if TYPE_CHECKING:
    from sojourn.core.arrays import UInt64Array

SPREADINGS = ("random", "sequence", "round-robin", "hashed-steps")


@dataclass(frozen=True, kw_only=True)
class BucketArrayParameters(Parameters):
    """Size of a bucket array and what its buckets hold."""

    kind = "bucket_array"

    buckets: int = integer("n", 1, 2**28)
    per_instance: int = integer("m", 1, 2**16)
    bits: int = integer("b", 1, 64, default=16)
    count_bits: int = integer("c", 0, 64, default=0)
    signed: bool = flag("signed", default=False)
    wrap: bool = flag("wrap", default=False)
    spreading: str = choice("j", SPREADINGS, default="round-robin")
    salt: int = integer("salt", 0, 2**64 - 1, default=0)

    def _check_together(self) -> None:
        if self.wrap and not self.signed:
            raise self.error("wrap needs signed buckets", "set signed: a wrapped sum is read as a signed one")

    def tables(self) -> tuple[Table, ...]:
        kind = Kind.MODULAR if self.wrap else Kind.SIGNED if self.signed else Kind.COUNT
        count = (Field("count", self.count_bits, Kind.COUNT),) if self.count_bits else ()
        return (Table("buckets", self.buckets, (Field("sum", self.bits, kind), *count)),)

    @cached_property
    def function_salts(self) -> UInt64Array:
        from sojourn.core.hash_kernels import salt_table

        return salt_table(self.per_instance, self.salt)

"""The IoTm paper, run again: Shahzad and Ganji, "IoTm: A Framework for Measuring IoT Performance Metrics", §IV.
 `iotm.synthetic` has Fig. 3 to 7, 10 and 11 in synthetic worlds; `iotm.real` repeats §IV-A and §IV-B with real
processes, a real broker, the agent and the query unit.
"""

from __future__ import annotations

from sojourn.papers.iotm.real import real_disk, real_flows
from sojourn.papers.iotm.synthetic import (
    buckets_in_array,
    buckets_in_subarray,
    disk_accuracy,
    disk_memory,
    epochs_of_a_query,
    flow_accuracy,
    flow_memory,
    number_of_flows,
)

TITLE = "IoTm: sums and means of many instances in a few buckets"
NOTES = """\
The paper's traces are not at hand. *Disk*: ten processes with 10 000, 5 000, … 1 000 accesses in ten minutes, 20
buckets of 16 bits, 5 for each. *Round trips*: flow i of 50 sends i messages per second for ten minutes, round trips of
5–45 ms with a jitter of 10 %, 20 buckets, 5 for each. Errors are |estimate/truth − 1|; no answer counts as 100 %.

*Literal* is the method as published: random j, the same hash functions in all epochs, Eq. 7 for each instance and epoch
by itself. *Joint* is our decoder, with a salt of each epoch's own; *turns* and *random j* say how measurements chose
their bucket. *Baseline* is an equal share of the total (disk) or the mean of all packets (round trips): an answer that
knows nothing of the instance. At small scale literal figures at t = 1 min rest on 1 to 4 runs, others on 1 to 200.

*Real* experiments use the disk and the network of the machine they run on: their figures differ from run to run. They
are recorded by `sojourn agent`, answered by `sojourn serve` over HTTP, and compared with what the same source counted
exactly beside. In *real round trips* the literal estimator reads the same salted epochs as the joint one. What the
machine cannot do is left out and says so."""

EXPERIMENTS = (
    disk_accuracy,
    buckets_in_array,
    buckets_in_subarray,
    epochs_of_a_query,
    disk_memory,
    flow_accuracy,
    number_of_flows,
    flow_memory,
    real_disk,
    real_flows,
)

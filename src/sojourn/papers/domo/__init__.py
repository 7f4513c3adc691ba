"""Domo's evaluation, run again: Gao et al., "Domo: Passive Per-Packet Delay Tomography in Wireless Ad-hoc Networks".
 `domo.experiments` has Fig. 6 to 10 and the same methods on traces of CTP in TOSSIM, `domo.semidefinite` the
semidefinite relaxation of §IV-A.
"""

from __future__ import annotations

from sojourn.papers.domo.experiments import accuracy, graph_cut, network_scale, packet_loss, real_traces, window_ratio
from sojourn.papers.domo.semidefinite import relaxation

TITLE = "Domo: the delay of every packet at every hop"
NOTES = """\
The paper's TOSSIM traces are not at hand and their period is not given. Networks are those of `sojourn lab wireless`
(period 10 s, 10 packets a node, buffers of 64): four at the scale `small`, twelve at `paper`, all delays together.
Times are those of this process and differ from run to run; all else does not.

*Literal* is Domo as published, read so that it works: the order of packets where it is proved instead of Eq. 4;
candidate sets without older local packets; Eq. 6 only where nothing is lost; ε as long as a window. Its bounds take
sums as equations where nothing is lost (by propagation, which comes within 0.5 % of linear programs), and as upper
bounds otherwise, where they are ours. *Joint* is our estimate, and bounds that hold whatever was lost. *Baseline* is
MNT with our proofs of order and our least delay; of displacements it is MessageTracing, each event as late as the
logs allow.

A displacement counts places in the order of all arrivals: it grows with the traffic's rate, so the period is named
beside it. A figure counts as reproduced if it is within a quarter of the paper's, or better; a rival's only if it is
within a quarter."""

EXPERIMENTS = (accuracy, packet_loss, network_scale, window_ratio, graph_cut, relaxation, real_traces)

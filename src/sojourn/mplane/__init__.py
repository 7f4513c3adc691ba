"""MPlane: which routers to upgrade, what each node then measures, measuring it, and which segment of a path is slow.

`measurements` is what all of it exchanges: what was measured of a segment in an interval.

============  ==============================================================================================
room          answers
============  ==============================================================================================
`planning`    topologies from files and live routers, shortest paths, upgrades, and every node's m-set
`probing`     active probes over links and virtual links, and their reflector
`router`      recording inside an m-router: taps, Start and End messages, an LDA at each end of every pair
`station`     a path's delay, deviation and loss from its segments, and which segment explains a change
============  ==============================================================================================

Paper: §II and §VI of Kompella et al., "Router Support for Fine-Grained Latency Measurements"; an *m-router* is an
upgraded router, and every other router has an *m-server* beside it.
"""

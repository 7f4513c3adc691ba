"""MPlane: which routers to upgrade, what every router and server then measures, and measuring inside a router.

================  ==========================================================================================
module            answers
================  ==========================================================================================
`topology`        routers and directed links, as arrays; `topology_files` reads them from any known format
`live`            the topology as a router's OSPF has it now, by `ospf` from its database
`paths`           all shortest paths, counted and not enumerated
`segments`        the segments that upgraded routers cut these paths into: how many, how long
`upgrade`         which routers to upgrade next: Algorithm 1, at random, or better
`msets`           what every m-router and m-server monitors, also while links fail
`watch`           what is to be monitored while a live topology changes
`measurements`    what was measured of a segment in an interval
`router_epochs`   how an m-router's intervals are sent, and what they say of its segments
`router_recorder` recording them: taps, Start and End messages, an LDA at each end of every pair and class
================  ==========================================================================================

Paper: §II and §VI of Kompella et al., "Router Support for Fine-Grained Latency Measurements"; an *m-router* is an
upgraded router, and every other router has an *m-server* beside it.
"""

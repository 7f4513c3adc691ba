"""MPlane: which routers to upgrade, what each node then measures, measuring it, and which segment of a path is slow.

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
`probes`          probing links and virtual links; `reflector` is the far end, `probe_messages` what they say
`probe_estimates` what the probes of an interval say of their segment
`path_segments`   the segments of the paths from one router to another
`station`         a path's delay, deviation and loss, put together from its segments
`changes`         whether a segment changed, beyond what chance does
`diagnosis`       which segment explains a path's change
================  ==========================================================================================

Paper: §II and §VI of Kompella et al., "Router Support for Fine-Grained Latency Measurements"; an *m-router* is an
upgraded router, and every other router has an *m-server* beside it.
"""

"""The sketches: fixed-size structures that measurements are recorded into.

Two sketches with equal parameters merge, and the merged sketch equals the one that would have recorded both
streams. All but samples are linear: they merge by addition (digests by XOR).

==================  ==================  ========================================================
module              paper               answers
==================  ==================  ========================================================
`bucket_array`      IoTm                sum and mean of a metric per process or flow
`counter_vector`    COLATE              mean latency per flow between any two observation points
`lda`               LDA                 mean, deviation and loss of a whole segment
`sds`               SDS                 mean delay per flow where packets carry time stamps
`lds`               LDS                 mean delay, size and loss per flow, under loss
`sample`            –                   mean delay, deviation and loss per flow, under heavy loss
`ledgers`           –                   mean delay and loss per flow, exactly; every lost packet
==================  ==================  ========================================================
"""
